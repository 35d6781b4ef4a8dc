-- Statements of one-off runs on PostgreSQL. A writer takes its transaction id before it reads the clock: open_seconds
-- closes a second by that order. Parts are addressed by name where the place is known; planning over 59 parts costs
-- more than the statement.

-- name: create_table
CREATE TABLE IF NOT EXISTS wheelbeat_later (
  part smallint NOT NULL,
  second bigint NOT NULL,
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  id uuid NOT NULL,
  at_ms bigint NOT NULL,
  key varchar(250),
  task varchar(255) NOT NULL,
  args text NOT NULL,
  kwargs text NOT NULL,
  options text NOT NULL DEFAULT '{}'
) PARTITION BY LIST (part)

-- name: create_parts
DO $$
BEGIN
  FOR i IN 0..31 LOOP
    EXECUTE format('CREATE TABLE IF NOT EXISTS wheelbeat_later_d%s PARTITION OF wheelbeat_later FOR VALUES IN (%s)',
                   lpad(i::text, 2, '0'), i);
  END LOOP;
  FOR i IN 0..25 LOOP
    EXECUTE format('CREATE TABLE IF NOT EXISTS wheelbeat_later_m%s PARTITION OF wheelbeat_later FOR VALUES IN (%s)',
                   lpad(i::text, 2, '0'), 32 + i);
  END LOOP;
  CREATE TABLE IF NOT EXISTS wheelbeat_later_beyond PARTITION OF wheelbeat_later FOR VALUES IN (58);
END $$

-- name: create_index_of_seconds
CREATE INDEX IF NOT EXISTS wheelbeat_later_second ON wheelbeat_later (second, xid)

-- name: create_index_of_keys
CREATE INDEX IF NOT EXISTS wheelbeat_later_key ON wheelbeat_later (key) WHERE key IS NOT NULL

-- name: drop_table
DROP TABLE IF EXISTS wheelbeat_later

-- name: own_clock
own AS MATERIALIZED (SELECT pg_current_xact_id() AS xid),
clock AS MATERIALIZED (
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms FROM own WHERE xid IS NOT NULL
)

-- name: part
CASE WHEN second - now_ms / 1000 < 2592000 THEN mod(second / 86400, 32)
     WHEN second - now_ms / 1000 < 62208000 THEN 32 + mod(second / 2592000, 26)
     ELSE 58 END

-- name: insert
WITH {own_clock},
placed AS (
  SELECT greatest(at_ms / 1000, now_ms / 1000 + 1) AS second, now_ms, given.*
  FROM clock, unnest(%(ids)s::uuid[], %(at_ms)s::bigint[], %(keys)s::text[], %(tasks)s::text[], %(args)s::text[],
                     %(kwargs)s::text[], %(options)s::text[])
       AS given (id, at_ms, key, task, args, kwargs, options)
)
INSERT INTO wheelbeat_later (part, second, id, at_ms, key, task, args, kwargs, options)
SELECT {part}, second, id, at_ms, key, task, args, kwargs, options FROM placed

-- name: clock
WITH {own_clock}
SELECT now_ms FROM clock

-- name: copy
COPY wheelbeat_later (part, second, id, at_ms, key, task, args, kwargs, options) FROM STDIN

-- name: lock_key
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 1463113812))

-- name: of_key
SELECT id::text, at_ms, key, task, args, kwargs, options,
       at_ms < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(in_force_ms)s
FROM wheelbeat_later WHERE key = %(key)s AND task <> '' ORDER BY at_ms DESC, id DESC LIMIT 1

-- name: of_id
SELECT id::text, at_ms, key, task, args, kwargs, options,
       at_ms < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(in_force_ms)s
FROM (
  SELECT * FROM {day_table} UNION ALL SELECT * FROM {month_table} UNION ALL SELECT * FROM wheelbeat_later_beyond
) AS parts WHERE second = %(second)s AND id = %(id)s::uuid AND task <> ''

-- name: cancel
WITH {own_clock},
of_day AS (DELETE FROM {day_table} USING clock WHERE {doomed} RETURNING part, second, id, at_ms),
of_month AS (DELETE FROM {month_table} USING clock WHERE {doomed} RETURNING part, second, id, at_ms),
beyond AS (DELETE FROM wheelbeat_later_beyond USING clock WHERE {doomed} RETURNING part, second, id, at_ms)
INSERT INTO wheelbeat_later (part, second, id, at_ms, task, args, kwargs)
SELECT part, second, id, at_ms, '', '', ''
FROM (SELECT * FROM of_day UNION ALL SELECT * FROM of_month UNION ALL SELECT * FROM beyond) AS gone
RETURNING id::text

-- name: doomed
second = %(second)s AND id = %(id)s::uuid AND task <> '' AND at_ms >= now_ms + %(in_force_ms)s

-- name: all_of_part
SELECT * FROM {table}

-- name: count
SELECT count(*) FROM ({parts}) AS parts WHERE second >= %(from_s)s AND second < %(until_s)s AND task <> ''

-- name: list
-- The conditions are outside of the parts: inside, PostgreSQL would sort all rows instead of merging the indexes.
SELECT id::text, at_ms, key, task, args, kwargs, options,
       at_ms < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(in_force_ms)s
FROM ({parts}) AS parts
WHERE second >= %(from_s)s AND second < %(until_s)s AND task <> ''
  AND (%(key)s::text IS NULL OR key = %(key)s::text) AND (%(task)s::text IS NULL OR task = %(task)s::text)
ORDER BY second, xid LIMIT %(limit)s

-- name: bounded_counts
-- The order makes the planner use the index: it ends each count at the limit.
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM ({parts}) AS parts
          WHERE second >= period.from_s AND second < period.until_s AND task <> '' ORDER BY second LIMIT %(limit)s
        ) AS counted)
FROM unnest(%(from_s)s::bigint[], %(until_s)s::bigint[]) WITH ORDINALITY AS period (from_s, until_s, n) ORDER BY n

-- name: inserted
SELECT coalesce(sum(pg_stat_get_tuples_inserted(inhrelid)), 0) FROM pg_inherits
WHERE inhparent = 'wheelbeat_later'::regclass

-- name: explain
EXPLAIN (FORMAT JSON)

-- name: no_parallel_plan
-- A parallel plan has the rows of one of its workers, in another order.
SELECT set_config('max_parallel_workers_per_gather', '0', true)

-- name: read_of_part
SELECT 1 FROM {table} WHERE second >= {from_s} AND second < {until_s}

-- name: search
-- Every row that was looked through counts, and the last one is returned, so that a search can go on from there.
SELECT id::text, at_ms, key, task, args, kwargs, options, second, n, CASE WHEN wanted THEN too_late END
FROM (
  SELECT *, row_number() OVER () AS n, count(*) OVER () AS searched,
         at_ms < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(in_force_ms)s AS too_late,
         task <> '' AND (%(task)s::text IS NULL OR task = %(task)s::text) AS wanted
  FROM (
    SELECT * FROM ({parts}) AS parts WHERE second >= %(from_s)s AND second < %(until_s)s
    ORDER BY second LIMIT %(searched)s
  ) AS first_rows
) AS looked_through
WHERE wanted OR n = searched ORDER BY n LIMIT %(limit)s

-- name: next_id
-- Greater than every id that was assigned before; a snapshot shows none beyond the last transaction that has ended.
SELECT pg_current_xact_id()::text

-- name: begin_poll
-- One round trip; the last statement returns a row. now() is the begin of the transaction, so it lies before the snapshot.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '60s';
-- To start a worker takes longer than the read.
SET LOCAL max_parallel_workers_per_gather = 0;
SELECT floor(extract(epoch FROM now()))::bigint, pg_current_snapshot()::text,
       concat_ws('/', (SELECT system_identifier FROM pg_control_system()), left(pg_walfile_name(pg_current_wal_lsn()), 8),
                 (SELECT stats_reset FROM pg_stat_wal), 'wheelbeat_later'::regclass::oid)

-- name: commit
COMMIT

-- name: first_second
SELECT min(second) FROM wheelbeat_later WHERE second >= %(from_s)s

-- name: columns
-- Texts that are too large for any message are not read. The order is that of xid and id, not of their texts.
second, id::text AS id_text, at_ms, task, CASE WHEN {fits} THEN args END, CASE WHEN {fits} THEN kwargs END,
CASE WHEN {fits} THEN options END, xid::text AS xid_text

-- name: fits
octet_length(args)::bigint + octet_length(kwargs) + octet_length(options) <= %(most_bytes)s

-- name: read
-- {table} is a UNION ALL of the parts in which the seconds can lie: one round trip reads all of them.
SELECT {columns} FROM {table} WHERE second = ANY(%(seconds)s::bigint[]) {rest}
ORDER BY second, xid, id

-- name: read_late
SELECT {columns} FROM (
  SELECT * FROM {table} WHERE second = ANY(%(seconds)s::bigint[]) AND xid >= %(xmax)s::text::xid8
  UNION ALL
  SELECT * FROM {table} WHERE second = ANY(%(seconds)s::bigint[]) AND xid = ANY(%(in_progress)s::text[]::xid8[])
) AS late WHERE true {rest}
ORDER BY second, xid, id

-- name: after
-- What the snapshot of the first piece did not see is read as late.
AND (second, xid, id) > (%(second)s, %(xid)s::text::xid8, %(id)s::uuid)
AND pg_visible_in_snapshot(xid, %(snapshot)s::text::pg_snapshot)

-- name: limit
LIMIT %(rows)s

-- name: declare
DECLARE wheelbeat_later_rows NO SCROLL CURSOR FOR

-- name: fetch
FETCH 256 FROM wheelbeat_later_rows

-- name: close_cursor
CLOSE wheelbeat_later_rows

-- name: begin_drop
BEGIN; SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '60s'

-- name: try_lock
SELECT pg_try_advisory_xact_lock(1463113812, %(part)s)

-- name: last_second
SELECT max(second) FROM {table}

-- name: truncate
TRUNCATE {table}

-- name: identity
-- Two connections with the same answer lead to the same database.
SELECT current_database(), (SELECT system_identifier FROM pg_control_system())
