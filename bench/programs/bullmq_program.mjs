// BullMQ on Redis, with undici as its HTTP client.
import { createRequire } from "module";

const require = createRequire(process.env.BENCH_MODULES + "/");
const { Queue, Worker } = require("bullmq");
const { Pool } = require("undici");
const Redis = require("ioredis");

const url = new URL(process.env.BENCH_URL);
const connect = () => new Redis(process.env.BENCH_REDIS, { maxRetriesPerRequest: null });
const concurrency = Number(process.env.BENCH_CONCURRENCY);
const [verb, size] = process.argv.slice(2);
const count = Number(size ?? 0);
const textOf = (key) => `Hello Ada Example, your parcel arrives today. [ref:${key}]`;

if (verb === "enqueue") {
  const options = {
    removeOnComplete: { count: 1000 },
    attempts: 1000,
    backoff: { type: "fixed", delay: 1000 },
  };
  const queue = new Queue("reminders", { connection: connect(), defaultJobOptions: options });
  await queue.waitUntilReady();
  const since = performance.now();
  for (let start = 0; start < count; start += 1000) {
    const part = Array.from({ length: Math.min(1000, count - start) }, (_, n) => start + n);
    await queue.addBulk(part.map((n) => ({ name: "send", data: { key: `parcel-${n}:customer-${n}:sms` } })));
  }
  console.log(JSON.stringify({ rate: count / ((performance.now() - since) / 1000) }));
  process.exit(0);
} else if (verb === "work") {
  const pool = new Pool(url.origin, { connections: concurrency });
  const send = async (job) => {
    const answer = await pool.request({
      method: "POST",
      path: url.pathname,
      headers: { "content-type": "application/json", "idempotency-key": job.data.key },
      body: JSON.stringify({ to: "+12025550123", text: textOf(job.data.key) }),
    });
    await answer.body.text();
    if (answer.statusCode >= 300) throw new Error(String(answer.statusCode));
  };
  const worker = new Worker("reminders", send, { connection: connect(), concurrency });
  worker.on("error", () => {});
}
