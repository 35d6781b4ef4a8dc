-- Statements of a beat on PostgreSQL. None leaves anything behind in the session, so a pooler in transaction mode may
-- give every statement another backend. Instants leave as integer milliseconds, cut; "infinity" as the bounds that
-- kinds.ALWAYS_MS and kinds.NEVER_MS name.

-- name: columns
id, name, task, args, kwargs, interval_ms, nullif(cron, ''), timezone, day_rule,
CASE once_at WHEN 'infinity' THEN 4611686018427387904 WHEN '-infinity' THEN -4611686018427387904
    ELSE floor(extract(epoch FROM once_at) * 1000)::bigint END,
nullif(solar_event, ''), solar_latitude, solar_longitude, jitter_s,
CASE start_at WHEN 'infinity' THEN 4611686018427387904 WHEN '-infinity' THEN -4611686018427387904
    ELSE floor(extract(epoch FROM start_at) * 1000)::bigint END,
CASE end_at WHEN 'infinity' THEN 4611686018427387904 WHEN '-infinity' THEN -4611686018427387904
    ELSE floor(extract(epoch FROM end_at) * 1000)::bigint END,
one_off, nullif(queue, ''), nullif(exchange, ''), nullif(routing_key, ''), priority, headers, expires_s, expires_next,
options, misfire, overlap, enabled, incident_interval_ms,
CASE incident_until WHEN 'infinity' THEN 4611686018427387904 WHEN '-infinity' THEN -4611686018427387904
    ELSE floor(extract(epoch FROM incident_until) * 1000)::bigint END,
CASE effective_from WHEN 'infinity' THEN 4611686018427387904 WHEN '-infinity' THEN -4611686018427387904
    ELSE floor(extract(epoch FROM effective_from) * 1000)::bigint END,
CASE finished_at WHEN 'infinity' THEN 4611686018427387904 WHEN '-infinity' THEN -4611686018427387904
    ELSE floor(extract(epoch FROM finished_at) * 1000)::bigint END,
packed

-- name: begin_columns
-- Aggregation must keep the order of the rows: no parallel workers. Compiling the statement would cost more than it.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '60s';
SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL jit = off;
LOCK TABLE wheelbeat_monitor IN ACCESS SHARE MODE

-- name: extent
-- Sizes, which are never out of date: statistics of a table that was emptied and filled again may be far off.
SELECT pg_relation_size('wheelbeat_monitor'), pg_table_size('wheelbeat_monitor'),
       (SELECT max(id) FROM wheelbeat_monitor)

-- name: sample
SELECT array_send(array_agg(id ORDER BY id)) FROM wheelbeat_monitor TABLESAMPLE SYSTEM (%(percent)s)

-- name: named
SELECT id FROM wheelbeat_monitor WHERE name = ANY(%(names)s)

-- name: aggregates
-- What has to be compiled by itself is only named: its texts may be long. Arguments come before keyword arguments as
-- their delimiter: texts are not put together only to be copied once more. So the first row's arguments are missing.
string_agg(packed, ''), string_agg(name, '') FILTER (WHERE packed IS NOT NULL),
string_agg(kwargs, CASE args WHEN '[]' THEN '][[], ' ELSE '][' || args || ', ' END) FILTER (WHERE packed IS NOT NULL),
array_send(array_agg(id) FILTER (WHERE packed IS NULL))

-- name: column_block
SELECT {aggregates}
FROM (SELECT id, packed, name, args, kwargs FROM wheelbeat_monitor WHERE id > $1 AND id <= $2 ORDER BY id) AS block

-- name: column_rows
SELECT {aggregates}
FROM (SELECT id, packed, name, args, kwargs FROM wheelbeat_monitor WHERE id = ANY($1::bigint[]) ORDER BY id) AS chosen

-- name: args_of
SELECT args FROM wheelbeat_monitor WHERE id = %(id)s

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '60s'

-- name: begin_rows
-- The lock comes before the snapshot: a table that a migration rewrites keeps no old versions of its rows, and a
-- transaction that waited for the lock with an older snapshot would see the table empty.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '60s';
LOCK TABLE wheelbeat_monitor IN ACCESS SHARE MODE

-- name: begin_write
BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '5s'

-- name: commit
COMMIT

-- name: estimate
-- Rows as the planner estimates them: the present size at the density of the last ANALYZE, if there was one.
SELECT ceil(pg_relation_size(oid) / current_setting('block_size')::float8
            * CASE WHEN relpages > 0 AND reltuples > 0 THEN reltuples / relpages ELSE 20 END)::bigint,
    (SELECT avg(octet_length(name) + octet_length(args) + octet_length(kwargs))::float8 FROM
     (SELECT name, args, kwargs FROM wheelbeat_monitor LIMIT 1000) AS few)
FROM pg_class WHERE oid = 'wheelbeat_monitor'::regclass

-- name: block
SELECT {columns} FROM wheelbeat_monitor WHERE id > %(after_id)s ORDER BY id LIMIT %(limit)s

-- name: fetch
SELECT {columns} FROM wheelbeat_monitor WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id

-- name: head
-- Statistics are reset by each crash recovery: the last commits may then be lost, and transaction ids that were seen
-- are assigned again. An orderly restart keeps them.
SELECT pg_current_snapshot()::text, pg_is_in_recovery(),
    (SELECT system_identifier FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
         ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
    (SELECT (extract(epoch FROM stats_reset) * 1000000)::bigint FROM pg_stat_wal),
    (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
    'wheelbeat_monitor'::regclass::oid::bigint,
    'wheelbeat_changelog'::regclass::oid::bigint,
    pg_relation_filenode('wheelbeat_changelog')::bigint,
    uuid, pruned_xid
FROM wheelbeat_installation ORDER BY id LIMIT 1

-- name: changes
-- Rows that the snapshot (xmax, in_progress) could not see and the current one can. Rows restored from a dump carry
-- transaction ids of another server; those that this server has not reached yet are ignored.
WITH found AS MATERIALIZED (
    SELECT monitor_id, operation FROM wheelbeat_changelog
    WHERE xid >= %(xmax)s::xid8 AND xid < pg_snapshot_xmax(pg_current_snapshot())
    UNION ALL
    SELECT monitor_id, operation FROM wheelbeat_changelog WHERE xid = ANY(%(in_progress)s::xid8[])
)
SELECT array_send(array_agg(monitor_id) FILTER (WHERE monitor_id IS NOT NULL)),
       max(operation) FILTER (WHERE monitor_id IS NULL)
FROM found

-- name: logged
SELECT DISTINCT monitor_id FROM wheelbeat_changelog
WHERE monitor_id = ANY(%(ids)s::bigint[]) AND at >= now() - %(within_s)s * interval '1 second'

-- name: namespace
SELECT uuid FROM wheelbeat_installation ORDER BY id LIMIT 1

-- name: marks
SELECT marks, extract(epoch FROM now() - seen_at)::float8 FROM wheelbeat_beat WHERE namespace = %(namespace)s

-- name: marks_by_age
SELECT marks FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 100

-- name: reporting
SELECT beat_id, host, pid FROM wheelbeat_beat WHERE namespace = %(namespace)s AND seen_at > now() - %(within_s)s * interval '1 second' LIMIT 100

-- name: report
INSERT INTO wheelbeat_beat (beat_id, namespace, host, pid, version, started_at, seen_at, marks, status)
VALUES (%(beat_id)s, %(namespace)s, %(host)s, %(pid)s, %(version)s, to_timestamp(%(started_ms)s / 1000.0), now(),
        %(marks)s, %(status)s)
ON CONFLICT (beat_id) DO UPDATE
SET namespace = excluded.namespace, host = excluded.host, pid = excluded.pid, version = excluded.version,
    started_at = excluded.started_at, seen_at = excluded.seen_at, marks = excluded.marks, status = excluded.status

-- name: quarantined
SELECT job_key, definition_hash, reason FROM wheelbeat_quarantine

-- name: quarantine
INSERT INTO wheelbeat_quarantine (job_key, definition_hash, reason, since)
VALUES (%(job_key)s, %(definition_hash)s, %(reason)s, now())
ON CONFLICT (job_key) DO UPDATE
SET definition_hash = excluded.definition_hash, reason = excluded.reason,
    since = CASE WHEN wheelbeat_quarantine.definition_hash = excluded.definition_hash
                 THEN wheelbeat_quarantine.since ELSE excluded.since END

-- name: lift
DELETE FROM wheelbeat_quarantine WHERE job_key = %(job_key)s

-- name: finish
UPDATE wheelbeat_monitor SET finished_at = to_timestamp(%(finished_ms)s / 1000.0)
WHERE id = %(id)s AND finished_at IS NULL AND effective_from < to_timestamp((%(armed_ms)s + 1) / 1000.0)

-- name: beats
SELECT beat_id, namespace, host, pid, version, extract(epoch FROM now() - seen_at)::float8, status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 100

-- name: id_of
SELECT id FROM wheelbeat_monitor WHERE name = %(name)s
