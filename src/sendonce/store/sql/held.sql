-- What a held store is asked: see sendonce.held.

-- name: meta_lock
SELECT value FROM meta WHERE name = :name {for_update};

-- name: view_last_beat
SELECT coalesce(max(beat_at), 0) AS beat_at FROM process;

-- What may have been tried in the lost span and waits, or is being asked about; in pages by id. Which of the put-off
-- ones cannot have been tried is decided by who reads them.
-- name: view_doubtful
SELECT id FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND delivery_id > :after AND last_try < :tried
  AND (look = 10 OR (look < 10 AND (due_at <= :until OR ((look <> 0 OR reason <> '') AND due_at > :held_at))))
ORDER BY delivery_id LIMIT :limit;

-- The same of those that are being called.
-- name: view_doubtful_calls
SELECT DISTINCT id FROM open_call CROSS JOIN delivery
WHERE id = delivery_id AND delivery_id > :after AND last_try < :tried AND state = 'SENDING'
ORDER BY id LIMIT :limit;
