-- Statements of a beat on SQLite. Instants are stored as UTC text and leave here as integer milliseconds, cut, not
-- rounded; what is no such text, and would be read as 'now' or a Julian day, leaves as it is, quoted. Empty texts of
-- optional columns leave as NULL.

-- name: columns
id, name, task, args, kwargs, interval_ms, nullif(cron, ''), timezone, day_rule, {once_at_ms},
nullif(solar_event, ''), solar_latitude, solar_longitude, jitter_s, {start_at_ms}, {end_at_ms},
one_off, nullif(queue, ''), nullif(exchange, ''), nullif(routing_key, ''), priority, headers, expires_s, expires_next,
options, misfire, overlap, enabled, incident_interval_ms, {incident_until_ms},
CASE WHEN effective_from GLOB '{instant}' THEN {effective_ms} ELSE quote(effective_from) END, {finished_at_ms},
CASE WHEN {plain} THEN {shape} END

-- name: instant
[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]*

-- name: once_at_ms
CASE WHEN once_at IS NULL THEN NULL WHEN once_at GLOB '{instant}'
     THEN coalesce(CAST(round((julianday(substr(once_at, 1, 23)) - 2440587.5) * 86400000) AS INTEGER), quote(once_at))
     ELSE quote(once_at) END

-- name: start_at_ms
CASE WHEN start_at IS NULL THEN NULL WHEN start_at GLOB '{instant}'
     THEN coalesce(CAST(round((julianday(substr(start_at, 1, 23)) - 2440587.5) * 86400000) AS INTEGER), quote(start_at))
     ELSE quote(start_at) END

-- name: end_at_ms
CASE WHEN end_at IS NULL THEN NULL WHEN end_at GLOB '{instant}'
     THEN coalesce(CAST(round((julianday(substr(end_at, 1, 23)) - 2440587.5) * 86400000) AS INTEGER), quote(end_at))
     ELSE quote(end_at) END

-- name: incident_until_ms
CASE WHEN incident_until IS NULL THEN NULL WHEN incident_until GLOB '{instant}'
     THEN coalesce(CAST(round((julianday(substr(incident_until, 1, 23)) - 2440587.5) * 86400000) AS INTEGER), quote(incident_until))
     ELSE quote(incident_until) END

-- name: finished_at_ms
CASE WHEN finished_at IS NULL THEN NULL WHEN finished_at GLOB '{instant}'
     THEN coalesce(CAST(round((julianday(substr(finished_at, 1, 23)) - 2440587.5) * 86400000) AS INTEGER), quote(finished_at))
     ELSE quote(finished_at) END

-- name: effective_ms
CAST(round((julianday(substr(effective_from, 1, 23)) - 2440587.5) * 86400000) AS INTEGER)

-- name: plain
-- What can be compiled as columns. A greatest value that is text: no blob, and nothing missing where a text belongs.
once_at IS NULL AND solar_event = '' AND start_at IS NULL AND end_at IS NULL AND finished_at IS NULL
AND incident_interval_ms IS NULL AND incident_until IS NULL AND typeof(interval_ms) IN ('integer', 'null')
AND effective_from GLOB '{instant}'
AND typeof(max(name, args, kwargs, task, cron, timezone, day_rule, queue, exchange, routing_key, headers, options, misfire,
               overlap, ifnull(jitter_s, 0), ifnull(priority, 0), ifnull(expires_s, 0), one_off, expires_next, enabled)
          ) = 'text'
AND length(args) + length(kwargs) <= 16384 AND json_valid(args) AND json_valid(kwargs)

-- name: shape
-- What a plain monitor has in common with many others: equal texts mean equal values of equal types.
json_array(task, interval_ms IS NULL, cron, timezone, day_rule, jitter_s, one_off, queue, exchange, routing_key, priority,
           headers, quote(expires_s), expires_next, options, misfire, overlap, enabled)

-- name: joined
-- Each value is followed by the character 31, numbers by a blank.
group_concat(id || ' ' || ifnull(interval_ms, 0) || ' ' || {effective_ms}, ' ') || ' ',
group_concat({shape}, char(31)) || char(31), group_concat(name, char(31)) || char(31),
group_concat(args, char(31)) || char(31), group_concat(kwargs, char(31)) || char(31)

-- name: begin_read
BEGIN

-- name: begin_write
BEGIN IMMEDIATE

-- name: commit
COMMIT

-- name: estimate
SELECT count(*), ({text_bytes}) FROM wheelbeat_monitor

-- name: text_bytes
SELECT avg(length(CAST(name AS BLOB)) + length(CAST(args AS BLOB)) + length(CAST(kwargs AS BLOB)))
FROM (SELECT name, args, kwargs FROM wheelbeat_monitor LIMIT 1000) AS few

-- name: block
SELECT {columns} FROM wheelbeat_monitor WHERE id > :after_id ORDER BY id LIMIT :limit

-- name: cut
SELECT id FROM wheelbeat_monitor NOT INDEXED WHERE id > :after_id ORDER BY id LIMIT 1 OFFSET :skip

-- name: last
SELECT max(id) FROM wheelbeat_monitor

-- name: count
SELECT count(*) FROM wheelbeat_monitor NOT INDEXED WHERE id > :after_id AND id <= :up_to_id

-- name: ids
SELECT id FROM wheelbeat_monitor NOT INDEXED WHERE id > :after_id AND id <= :up_to_id ORDER BY id

-- name: named
SELECT id FROM wheelbeat_monitor WHERE name IN (SELECT value FROM json_each(:names))

-- name: column_block
SELECT {joined} FROM wheelbeat_monitor NOT INDEXED WHERE id > :after_id AND id <= :up_to_id AND {plain}

-- name: column_rows
SELECT {joined} FROM wheelbeat_monitor NOT INDEXED
WHERE id IN (SELECT value FROM json_each(:ids)) AND {plain}

-- name: fetch
SELECT {columns} FROM wheelbeat_monitor WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- name: state
SELECT (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'wheelbeat_changelog'), uuid, pruned_id,
       (SELECT operation || coalesce(monitor_id, '') || ' ' || at FROM wheelbeat_changelog WHERE id = :high)
FROM wheelbeat_installation ORDER BY id LIMIT 1

-- name: changes
SELECT monitor_id, operation FROM wheelbeat_changelog WHERE id > :high

-- name: logged
SELECT DISTINCT monitor_id FROM wheelbeat_changelog
WHERE monitor_id IN (SELECT value FROM json_each(:ids))
  AND at >= strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || :within_s || ' seconds')

-- name: namespace
SELECT uuid FROM wheelbeat_installation ORDER BY id LIMIT 1

-- name: marks
SELECT marks, (julianday('now') - julianday(substr(seen_at, 1, 23))) * 86400.0 FROM wheelbeat_beat WHERE namespace = :namespace

-- name: marks_by_age
SELECT marks FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 100

-- name: reporting
SELECT beat_id, host, pid FROM wheelbeat_beat WHERE namespace = :namespace AND julianday(substr(seen_at, 1, 23)) > julianday('now') - :within_s / 86400.0 LIMIT 100

-- name: report
INSERT INTO wheelbeat_beat (beat_id, namespace, host, pid, version, started_at, seen_at, marks, status)
VALUES (:beat_id, :namespace, :host, :pid, :version,
        strftime('%Y-%m-%d %H:%M:%f000', :started_ms / 1000.0, 'unixepoch'), strftime('%Y-%m-%d %H:%M:%f000', 'now'),
        :marks, :status)
ON CONFLICT (beat_id) DO UPDATE
SET namespace = excluded.namespace, host = excluded.host, pid = excluded.pid, version = excluded.version,
    started_at = excluded.started_at, seen_at = excluded.seen_at, marks = excluded.marks, status = excluded.status

-- name: quarantined
SELECT job_key, definition_hash, reason FROM wheelbeat_quarantine

-- name: quarantine
INSERT INTO wheelbeat_quarantine (job_key, definition_hash, reason, since)
VALUES (:job_key, :definition_hash, :reason, strftime('%Y-%m-%d %H:%M:%f000', 'now'))
ON CONFLICT (job_key) DO UPDATE
SET definition_hash = excluded.definition_hash, reason = excluded.reason,
    since = CASE WHEN wheelbeat_quarantine.definition_hash = excluded.definition_hash
                 THEN wheelbeat_quarantine.since ELSE excluded.since END

-- name: lift
DELETE FROM wheelbeat_quarantine WHERE job_key = :job_key

-- name: finish
UPDATE wheelbeat_monitor SET finished_at = strftime('%Y-%m-%d %H:%M:%f000', :finished_ms / 1000.0, 'unixepoch')
WHERE id = :id AND finished_at IS NULL
  AND effective_from < strftime('%Y-%m-%d %H:%M:%f000', (:armed_ms + 1) / 1000.0, 'unixepoch')

-- name: beats
SELECT beat_id, namespace, host, pid, version, (julianday('now') - julianday(substr(seen_at, 1, 23))) * 86400.0, status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 100

-- name: id_of
SELECT id FROM wheelbeat_monitor WHERE name = :name
