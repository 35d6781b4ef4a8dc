-- Statements of a beat on MariaDB. The session's time zone is UTC. Instants leave as integer milliseconds, cut.

-- name: columns
id, name, task, args, kwargs, interval_ms, nullif(cron, ''), timezone, day_rule,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', once_at) DIV 1000,
nullif(solar_event, ''), solar_latitude, solar_longitude, jitter_s,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', start_at) DIV 1000,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', end_at) DIV 1000,
one_off, nullif(queue, ''), nullif(exchange, ''), nullif(routing_key, ''), priority, headers, expires_s, expires_next,
options, misfire, overlap, enabled, incident_interval_ms,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', incident_until) DIV 1000,
{effective_ms},
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', finished_at) DIV 1000,
CASE WHEN {plain} THEN {shape} END

-- name: effective_ms
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', effective_from) DIV 1000

-- name: plain
-- What can be compiled as columns. json_valid accepts the numbers 1., 1e+ and -, which are not JSON.
once_at IS NULL AND solar_event = '' AND start_at IS NULL AND end_at IS NULL AND finished_at IS NULL
AND incident_interval_ms IS NULL AND incident_until IS NULL
AND octet_length(args) + octet_length(kwargs) <= 16384 AND json_valid(args) AND json_valid(kwargs)
AND concat(args, kwargs) NOT REGEXP '[[,:][[:space:]]*(-?[0-9]+([.][^0-9]|([.][0-9]+)?[eE]([^0-9+-]|[+-][^0-9]))|-[^0-9])'

-- name: shape
-- What a plain monitor has in common with many others: equal texts mean equal values.
concat_ws(',', quote(task), interval_ms IS NULL, quote(cron), quote(timezone), day_rule, ifnull(jitter_s, '-'), one_off,
          quote(queue), quote(exchange), quote(routing_key), ifnull(priority, '-'), quote(headers),
          ifnull(expires_s, '-'), expires_next, quote(options), misfire, overlap, enabled)

-- name: joined
-- Each value is followed by the character 31, numbers by a blank: a text that the server has cut has no such end.
group_concat(concat_ws(' ', id, ifnull(interval_ms, 0), {effective_ms}), ' ' SEPARATOR ''),
group_concat({shape}, _utf8mb4 0x1f SEPARATOR ''), group_concat(name, _utf8mb4 0x1f SEPARATOR ''),
group_concat(args, _utf8mb4 0x1f SEPARATOR ''), group_concat(kwargs, _utf8mb4 0x1f SEPARATOR '')

-- name: begin_read
START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY

-- name: begin_write
START TRANSACTION

-- name: commit
COMMIT

-- name: estimate
SELECT coalesce(max(table_rows), 0), ({text_bytes}) FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = 'wheelbeat_monitor'

-- name: text_bytes
SELECT avg(octet_length(name) + octet_length(args) + octet_length(kwargs))
FROM (SELECT name, args, kwargs FROM wheelbeat_monitor LIMIT 1000) AS few

-- name: block
SELECT {columns} FROM wheelbeat_monitor WHERE id > %(after_id)s ORDER BY id LIMIT %(limit)s

-- name: cut
SELECT id FROM wheelbeat_monitor FORCE INDEX (PRIMARY) WHERE id > %(after_id)s ORDER BY id LIMIT 1 OFFSET %(skip)s

-- name: last
SELECT max(id) FROM wheelbeat_monitor

-- name: count
SELECT count(*) FROM wheelbeat_monitor FORCE INDEX (PRIMARY) WHERE id > %(after_id)s AND id <= %(up_to_id)s

-- name: ids
SELECT id FROM wheelbeat_monitor FORCE INDEX (PRIMARY) WHERE id > %(after_id)s AND id <= %(up_to_id)s ORDER BY id

-- name: named
SELECT id FROM wheelbeat_monitor WHERE name IN %(names)s

-- name: column_block
SELECT {joined} FROM wheelbeat_monitor FORCE INDEX (PRIMARY)
WHERE id > %(after_id)s AND id <= %(up_to_id)s AND {plain}

-- name: column_rows
SELECT {joined} FROM wheelbeat_monitor FORCE INDEX (PRIMARY)
WHERE id IN %(ids)s AND {plain}

-- name: fetch
SELECT {columns} FROM wheelbeat_monitor WHERE id IN %(ids)s ORDER BY id

-- name: oldest_transaction
SELECT max(TIMESTAMPDIFF(SECOND, trx_started, now())) FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> connection_id()

-- name: state
SELECT (SELECT coalesce(max(id), 0) FROM wheelbeat_changelog), uuid, pruned_id,
       (SELECT concat(operation, coalesce(monitor_id, ''), ' ', at) FROM wheelbeat_changelog WHERE id = %(high)s)
FROM wheelbeat_installation ORDER BY id LIMIT 1

-- name: changes
SELECT id, monitor_id, operation FROM wheelbeat_changelog WHERE id BETWEEN %(low)s AND %(high)s ORDER BY id

-- name: recent
SELECT id, TIMESTAMPDIFF(SECOND, at, UTC_TIMESTAMP(6)) FROM wheelbeat_changelog
WHERE id <= %(high)s ORDER BY id DESC LIMIT 10000

-- name: logged
SELECT DISTINCT monitor_id FROM wheelbeat_changelog
WHERE monitor_id IN %(ids)s AND at >= TIMESTAMPADD(SECOND, -%(within_s)s, UTC_TIMESTAMP(6))

-- name: namespace
SELECT uuid FROM wheelbeat_installation ORDER BY id LIMIT 1

-- name: marks
SELECT marks, TIMESTAMPDIFF(MICROSECOND, seen_at, UTC_TIMESTAMP(6)) / 1000000.0 FROM wheelbeat_beat WHERE namespace = %(namespace)s

-- name: marks_by_age
SELECT marks FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 100

-- name: reporting
SELECT beat_id, host, pid FROM wheelbeat_beat WHERE namespace = %(namespace)s AND seen_at > UTC_TIMESTAMP(6) - INTERVAL %(within_s)s SECOND LIMIT 100

-- name: report
INSERT INTO wheelbeat_beat (beat_id, namespace, host, pid, version, started_at, seen_at, marks, status)
VALUES (%(beat_id)s, %(namespace)s, %(host)s, %(pid)s, %(version)s,
        TIMESTAMPADD(MICROSECOND, %(started_ms)s * 1000, '1970-01-01'), UTC_TIMESTAMP(6), %(marks)s, %(status)s)
ON DUPLICATE KEY UPDATE
    namespace = VALUES(namespace), host = VALUES(host), pid = VALUES(pid), version = VALUES(version),
    started_at = VALUES(started_at), seen_at = VALUES(seen_at), marks = VALUES(marks), status = VALUES(status)

-- name: quarantined
SELECT job_key, definition_hash, reason FROM wheelbeat_quarantine

-- name: quarantine
INSERT INTO wheelbeat_quarantine (job_key, definition_hash, reason, since)
VALUES (%(job_key)s, %(definition_hash)s, %(reason)s, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    since = IF(definition_hash = VALUES(definition_hash), since, VALUES(since)),
    definition_hash = VALUES(definition_hash), reason = VALUES(reason)

-- name: lift
DELETE FROM wheelbeat_quarantine WHERE job_key = %(job_key)s

-- name: finish
UPDATE wheelbeat_monitor SET finished_at = TIMESTAMPADD(MICROSECOND, %(finished_ms)s * 1000, '1970-01-01')
WHERE id = %(id)s AND finished_at IS NULL
  AND effective_from < TIMESTAMPADD(MICROSECOND, (%(armed_ms)s + 1) * 1000, '1970-01-01')

-- name: beats
SELECT beat_id, namespace, host, pid, version, TIMESTAMPDIFF(MICROSECOND, seen_at, UTC_TIMESTAMP(6)) / 1000000.0, status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 100

-- name: id_of
SELECT id FROM wheelbeat_monitor WHERE name = %(name)s
