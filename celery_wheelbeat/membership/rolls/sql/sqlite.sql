-- Statements of the roll on SQLite. One writer at a time: two beats that announce are ordered.

-- name: create_table
CREATE TABLE IF NOT EXISTS wheelbeat_member (
  number integer PRIMARY KEY AUTOINCREMENT,
  beat_id varchar(36) NOT NULL UNIQUE,
  namespace varchar(200) NOT NULL,
  beats bigint NOT NULL,
  seen_ms bigint NOT NULL,
  line text NOT NULL
)

-- name: drop_table
DROP TABLE IF EXISTS wheelbeat_member

-- name: now_ms
CAST((julianday('now') - 2440587.5) * 86400000 AS integer)

-- name: beat
BEGIN IMMEDIATE;
UPDATE wheelbeat_member SET beats = beats + 1, seen_ms = {now_ms}, line = :line WHERE beat_id = :beat_id;
SELECT number, {now_ms} FROM wheelbeat_member WHERE beat_id = :beat_id;
SELECT beat_id, number, beats, ({now_ms} - seen_ms) / 1000.0, line FROM wheelbeat_member
WHERE namespace = :namespace AND beat_id <> :beat_id ORDER BY seen_ms DESC LIMIT 256;
COMMIT

-- name: enter
INSERT OR IGNORE INTO wheelbeat_member (beat_id, namespace, beats, seen_ms, line)
VALUES (:beat_id, :namespace, 0, {now_ms}, :line)

-- name: forget
DELETE FROM wheelbeat_member WHERE beat_id = :beat_id AND namespace = :namespace
