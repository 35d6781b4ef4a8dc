-- Statements of one-off runs on SQLite. One writer at a time, so ascending seq is the order of commits.

-- name: create_table
CREATE TABLE IF NOT EXISTS wheelbeat_later (
  seq integer PRIMARY KEY AUTOINCREMENT,
  second bigint NOT NULL,
  id varchar(36) NOT NULL,
  at_ms bigint NOT NULL,
  key varchar(250),
  task varchar(255) NOT NULL,
  args text NOT NULL,
  kwargs text NOT NULL,
  options text NOT NULL DEFAULT '{}'
)

-- name: create_index_of_seconds
CREATE INDEX IF NOT EXISTS wheelbeat_later_second ON wheelbeat_later (second, seq)

-- name: create_index_of_keys
CREATE INDEX IF NOT EXISTS wheelbeat_later_key ON wheelbeat_later (key) WHERE key IS NOT NULL

-- name: drop_table
DROP TABLE IF EXISTS wheelbeat_later

-- name: now_ms
CAST((julianday('now') - 2440587.5) * 86400000 AS integer)

-- name: insert
INSERT INTO wheelbeat_later (second, id, at_ms, key, task, args, kwargs, options)
VALUES (max(:at_ms / 1000, {now_ms} / 1000 + 1), :id, :at_ms, :key, :task, :args, :kwargs, :options)

-- name: lock
-- Deletes nothing and takes the lock of writers, waiting for it. A transaction that has read before another one wrote
-- is refused at once: "database is locked".
DELETE FROM wheelbeat_later WHERE 0

-- name: of_key
SELECT id, at_ms, key, task, args, kwargs, options, at_ms < {now_ms} + :in_force_ms
FROM wheelbeat_later WHERE key = :key AND task <> '' ORDER BY at_ms DESC, seq DESC LIMIT 1

-- name: of_id
SELECT id, at_ms, key, task, args, kwargs, options, at_ms < {now_ms} + :in_force_ms
FROM wheelbeat_later WHERE second = :second AND id = :id AND task <> ''

-- name: tombstone
-- It comes before the DELETE, which it finds the row by; both are one transaction of the caller's.
INSERT INTO wheelbeat_later (second, id, at_ms, task, args, kwargs)
SELECT second, id, at_ms, '', '', '' FROM wheelbeat_later
WHERE second = :second AND id = :id AND task <> '' AND at_ms >= {now_ms} + :in_force_ms
RETURNING id

-- name: delete
DELETE FROM wheelbeat_later WHERE second = :second AND id = :id AND task <> ''

-- name: count
SELECT count(*) FROM wheelbeat_later WHERE second >= :from_s AND second < :until_s AND task <> ''

-- name: list
SELECT id, at_ms, key, task, args, kwargs, options, at_ms < {now_ms} + :in_force_ms
FROM wheelbeat_later
WHERE second >= :from_s AND second < :until_s AND task <> ''
  AND (:key IS NULL OR key = :key) AND (:task IS NULL OR task = :task)
ORDER BY second, seq LIMIT :limit

-- name: bounded_counts
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM wheelbeat_later
          WHERE second >= period.value AND second < json_extract(:until_s, '$[' || period.key || ']') AND task <> ''
          LIMIT :limit
        ))
FROM json_each(:from_s) AS period ORDER BY period.key

-- name: inserted
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'wheelbeat_later'), 0)

-- name: search
-- Every row that was looked through counts, and the last one is returned, so that a search can go on from there.
SELECT id, at_ms, key, task, args, kwargs, options, second, n, CASE WHEN wanted THEN too_late END
FROM (
  SELECT *, row_number() OVER () AS n, count(*) OVER () AS searched, at_ms < {now_ms} + :in_force_ms AS too_late,
         task <> '' AND (:task IS NULL OR task = :task) AS wanted
  FROM (
    SELECT * FROM wheelbeat_later WHERE second >= :from_s AND second < :until_s ORDER BY second, seq LIMIT :searched
  )
)
WHERE wanted OR n = searched ORDER BY n LIMIT :limit

-- name: begin_poll
BEGIN

-- name: commit
COMMIT

-- name: head
-- A column may hold a text, whatever its type; no text is less than a number.
SELECT {now_ms} / 1000, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'wheelbeat_later'), 0),
       (SELECT CAST(second AS integer) FROM wheelbeat_later
        WHERE second >= {now_ms} / 1000 - :back_s AND second <= {now_ms} / 1000 ORDER BY second LIMIT 1)

-- name: columns
-- A text may hold octets that are not UTF-8. Texts that are too large for any message are not read.
second, CAST(substr(id, 1, 40) AS blob), at_ms, CAST(substr(task, 1, 256) AS blob),
CASE WHEN {fits} THEN CAST(args AS blob) END, CASE WHEN {fits} THEN CAST(kwargs AS blob) END,
CASE WHEN {fits} THEN CAST(options AS blob) END, seq

-- name: fits
length(args) + length(kwargs) + length(options) <= :most_bytes

-- name: read
SELECT {columns} FROM wheelbeat_later
WHERE second > :opened_s AND second <= :until_s AND (second, seq) > (:second, :seq) AND seq <= :high
ORDER BY second, seq LIMIT :rows

-- name: read_late
SELECT {columns} FROM wheelbeat_later
WHERE seq > :seq AND seq <= :high AND second <= :opened_s ORDER BY seq LIMIT :rows

-- name: drop_before
DELETE FROM wheelbeat_later
WHERE seq IN (SELECT seq FROM wheelbeat_later WHERE second < :before_s ORDER BY second LIMIT :limit)
RETURNING seq

-- name: identity
-- Two connections with the same answer lead to the same database.
SELECT file FROM pragma_database_list WHERE name = 'main'
