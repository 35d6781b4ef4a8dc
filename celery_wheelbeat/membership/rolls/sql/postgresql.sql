-- Statements of the roll on PostgreSQL. ``beat`` is sent as one message and is one transaction, so it may pass a pooler.
-- A commit does not wait for the disk: what a crash of the server forgets makes a mark older.
-- Without an index but the primary key, and with half of each page free, an update writes no index (HOT).

-- name: create_table
CREATE TABLE IF NOT EXISTS wheelbeat_member (
  beat_id varchar(36) PRIMARY KEY,
  namespace varchar(200) NOT NULL,
  number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  beats bigint NOT NULL,
  seen_at timestamptz NOT NULL,
  line text NOT NULL
) WITH (fillfactor = 50)

-- name: drop_table
DROP TABLE IF EXISTS wheelbeat_member

-- name: begin
BEGIN;
SET LOCAL synchronous_commit = off;
SET LOCAL lock_timeout = %(wait_ms)s;
SET LOCAL statement_timeout = %(wait_ms)s

-- name: beat
{begin};
UPDATE wheelbeat_member SET beats = beats + 1, seen_at = clock_timestamp(), line = %(line)s
WHERE beat_id = %(beat_id)s
RETURNING number, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
SELECT beat_id, number, beats, extract(epoch FROM clock_timestamp() - seen_at), line FROM wheelbeat_member
WHERE namespace = %(namespace)s AND beat_id <> %(beat_id)s ORDER BY seen_at DESC LIMIT 256;
COMMIT

-- name: enter
{begin};
INSERT INTO wheelbeat_member (beat_id, namespace, beats, seen_at, line)
VALUES (%(beat_id)s, %(namespace)s, 0, clock_timestamp(), %(line)s) ON CONFLICT (beat_id) DO NOTHING;
COMMIT

-- name: forget
{begin};
DELETE FROM wheelbeat_member WHERE beat_id = %(beat_id)s AND namespace = %(namespace)s;
COMMIT
