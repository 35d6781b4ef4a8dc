-- Statements of the roll on MariaDB, each in its own transaction.

-- name: create_table
CREATE TABLE IF NOT EXISTS wheelbeat_member (
  beat_id varchar(36) NOT NULL PRIMARY KEY,
  namespace varchar(200) NOT NULL,
  number bigint NOT NULL AUTO_INCREMENT UNIQUE,
  beats bigint NOT NULL,
  seen_at datetime(6) NOT NULL,
  line mediumtext NOT NULL
) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- name: drop_table
DROP TABLE IF EXISTS wheelbeat_member

-- name: beat
UPDATE wheelbeat_member SET beats = beats + 1, seen_at = UTC_TIMESTAMP(6), line = %(line)s WHERE beat_id = %(beat_id)s;
SELECT number, CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS signed) FROM wheelbeat_member WHERE beat_id = %(beat_id)s;
SELECT beat_id, number, beats, TIMESTAMPDIFF(MICROSECOND, seen_at, UTC_TIMESTAMP(6)) / 1000000, line
FROM wheelbeat_member WHERE namespace = %(namespace)s AND beat_id <> %(beat_id)s ORDER BY seen_at DESC LIMIT 256

-- name: enter
INSERT IGNORE INTO wheelbeat_member (beat_id, namespace, beats, seen_at, line)
VALUES (%(beat_id)s, %(namespace)s, 0, UTC_TIMESTAMP(6), %(line)s)

-- name: forget
DELETE FROM wheelbeat_member WHERE beat_id = %(beat_id)s AND namespace = %(namespace)s
