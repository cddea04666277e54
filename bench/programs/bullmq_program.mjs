// BullMQ on Redis, with undici as its HTTP client.
import { createRequire } from "module";

const require = createRequire(process.env.BENCH_MODULES + "/");
const { Queue, Worker } = require("bullmq");
const { Pool } = require("undici");
const Redis = require("ioredis");

const url = new URL(process.env.BENCH_URL);
const connect = () => new Redis(process.env.BENCH_REDIS, { maxRetriesPerRequest: null });
const concurrency = Number(process.env.BENCH_CONCURRENCY);
const limit = Number(process.env.BENCH_LIMIT); // calls a second of all workers; 0: none
const leaseMs = Number(process.env.BENCH_LEASE_S) * 1000; // 0: as it comes
const [verb, ...figures] = process.argv.slice(2);
const textOf = (key) => `Hello Ada Example, your parcel arrives today. [ref:${key}]`;

if (verb === "enqueue") {
  const [count, first, dueAt, seconds] = figures.map(Number);
  const options = {
    removeOnComplete: { count: 1000 },
    attempts: 1000,
    backoff: { type: "fixed", delay: 1000 },
  };
  const queue = new Queue("reminders", { connection: connect(), defaultJobOptions: options });
  await queue.waitUntilReady();
  const since = performance.now();
  let made = 0;
  while (made < count && performance.now() - since < seconds * 1000) {
    const delay = dueAt ? Math.max(0, dueAt * 1000 - Date.now()) : 0;
    const size = Math.min(1000, count - made);
    const numbers = Array.from({ length: size }, (_, n) => first + made + n);
    await queue.addBulk(
      numbers.map((n) => ({
        name: "send",
        data: { key: `parcel-${n}:customer-${n}:sms` },
        opts: delay ? { delay } : {},
      })),
    );
    made += size;
  }
  console.log(JSON.stringify({ count: made, rate: made / ((performance.now() - since) / 1000) }));
  process.exit(0);
} else if (verb === "work") {
  const pool = new Pool(url.origin, { connections: concurrency });
  let worker;
  const send = async (job) => {
    const answer = await pool.request({
      method: "POST",
      path: url.pathname,
      headers: { "content-type": "application/json", "idempotency-key": job.data.key },
      body: JSON.stringify({ to: "+12025550123", text: textOf(job.data.key) }),
    });
    await answer.body.text();
    if (answer.statusCode === 429) {
      await worker.rateLimit(1000);
      throw Worker.RateLimitError();
    }
    if (answer.statusCode >= 300) throw new Error(String(answer.statusCode));
  };
  worker = new Worker("reminders", send, {
    connection: connect(),
    concurrency,
    ...(limit ? { limiter: { max: limit, duration: 1000 } } : {}),
    ...(leaseMs ? { lockDuration: leaseMs, stalledInterval: leaseMs } : {}),
  });
  worker.on("error", () => {});
}
