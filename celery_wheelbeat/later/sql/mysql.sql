-- Statements of one-off runs on MariaDB. Names of parts are those of PostgreSQL's tables. sysdate() is the clock at
-- the moment, now() the begin of the statement, which may have waited for a lock.

-- name: create_table
-- A second is read from three parts, each in the order of the primary key. The collation does not ignore spaces.
CREATE TABLE IF NOT EXISTS wheelbeat_later (
  part smallint NOT NULL,
  second bigint NOT NULL,
  id uuid NOT NULL,
  at_ms bigint NOT NULL,
  `key` varchar(250),
  task varchar(255) NOT NULL,
  args longtext NOT NULL,
  kwargs longtext NOT NULL,
  options longtext NOT NULL DEFAULT '{}',
  PRIMARY KEY (part, second, id),
  KEY wheelbeat_later_key (`key`)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PARTITION BY LIST (part) ({partitions})

-- name: create_locks
-- A writer of a key locks one of these rows until its transaction ends.
CREATE TABLE IF NOT EXISTS wheelbeat_later_lock (n smallint PRIMARY KEY) ENGINE=InnoDB

-- name: create_rows_of_locks
INSERT IGNORE INTO wheelbeat_later_lock (n) SELECT seq FROM seq_0_to_255

-- name: drop_table
DROP TABLE IF EXISTS wheelbeat_later, wheelbeat_later_lock

-- name: now_ms
-- sysdate() alone is a local time, which occurs twice when clocks are set back.
(unix_timestamp() * 1000 + (microsecond(now(6)) + timestampdiff(MICROSECOND, now(6), sysdate(6))) DIV 1000)

-- name: part
CASE WHEN second - now_ms DIV 1000 < 2592000 THEN mod(second DIV 86400, 32)
     WHEN second - now_ms DIV 1000 < 62208000 THEN 32 + mod(second DIV 2592000, 26)
     ELSE 58 END

-- name: insert
INSERT INTO wheelbeat_later (part, second, id, at_ms, `key`, task, args, kwargs, options)
SELECT {part}, second, id, at_ms, name, task, args, kwargs, options
FROM (
  SELECT greatest(at_ms DIV 1000, now_ms DIV 1000 + 1) AS second, now_ms, given.*
  FROM (SELECT {now_ms} AS now_ms) AS clock,
       JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         id char(36) PATH '$[0]', at_ms bigint PATH '$[1]', name varchar(250) PATH '$[2]', task varchar(255) PATH '$[3]',
         args longtext PATH '$[4]', kwargs longtext PATH '$[5]', options longtext PATH '$[6]'
       )) AS given
) AS placed

-- name: lock_key
SELECT n FROM wheelbeat_later_lock WHERE n = crc32(%(key)s) & 255 FOR UPDATE

-- name: found
id, at_ms, `key`, task, args, kwargs, options, at_ms < {now_ms} + %(in_force_ms)s

-- name: of_key
SELECT {found} FROM wheelbeat_later WHERE `key` = %(key)s AND task <> '' ORDER BY at_ms DESC, id DESC LIMIT 1

-- name: of_id
SELECT {found} FROM wheelbeat_later WHERE part IN %(parts)s AND second = %(second)s AND id = %(id)s AND task <> ''

-- name: delete
DELETE FROM wheelbeat_later
WHERE part IN %(parts)s AND second = %(second)s AND id = %(id)s AND task <> '' AND at_ms >= {now_ms} + %(in_force_ms)s
RETURNING part, at_ms

-- name: tombstone
INSERT INTO wheelbeat_later (part, second, id, at_ms, task, args, kwargs)
VALUES (%(part)s, %(second)s, %(id)s, %(at_ms)s, '', '', '')

-- name: count
SELECT count(*) FROM wheelbeat_later
WHERE part IN %(parts)s AND second >= %(from_s)s AND second < %(until_s)s AND task <> ''

-- name: list
SELECT {found} FROM wheelbeat_later
WHERE part IN %(parts)s AND second >= %(from_s)s AND second < %(until_s)s AND task <> ''
  AND (%(key)s IS NULL OR `key` = %(key)s) AND (%(task)s IS NULL OR task = %(task)s)
ORDER BY second, id LIMIT %(limit)s

-- name: bounded_counts
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM wheelbeat_later
          WHERE part IN %(parts)s AND second >= from_s AND second < until_s AND task <> '' LIMIT %(limit)s
        ) AS counted)
FROM JSON_TABLE(%(periods)s, '$[*]' COLUMNS (n FOR ORDINALITY, from_s bigint PATH '$[0]', until_s bigint PATH '$[1]'))
     AS period ORDER BY n

-- name: search
-- Every row that was looked through counts, and the last one is returned, so that a search can go on from there.
SELECT id, at_ms, `key`, task, args, kwargs, options, second, n, CASE WHEN wanted THEN too_late END
FROM (
  SELECT first_rows.*, row_number() OVER (ORDER BY second, id) AS n, count(*) OVER () AS searched,
         at_ms < {now_ms} + %(in_force_ms)s AS too_late,
         task <> '' AND (%(task)s IS NULL OR task = %(task)s) AS wanted
  FROM (
    SELECT * FROM wheelbeat_later WHERE part IN %(parts)s AND second >= %(from_s)s AND second < %(until_s)s
    ORDER BY second, id LIMIT %(searched)s
  ) AS first_rows
) AS looked_through
WHERE wanted OR n = searched ORDER BY n LIMIT %(limit)s

-- name: identity
-- Two connections with the same answer lead to the same database.
SELECT database(), @@hostname, @@port, @@datadir

-- name: oldest_transaction
SELECT max(IF(trx_mysql_thread_id = connection_id(), NULL, TIMESTAMPDIFF(SECOND, trx_started, now()))),
       max(trx_mysql_thread_id = connection_id() AND instr(trx_query, %(nonce)s) > 0)
FROM information_schema.innodb_trx

-- name: begin_poll
START TRANSACTION READ ONLY, WITH CONSISTENT SNAPSHOT

-- name: commit
COMMIT

-- name: clock
SELECT {now_ms} DIV 1000

-- name: first_second
SELECT min(second) FROM wheelbeat_later WHERE second >= %(from_s)s AND second <= %(until_s)s AND part IN %(parts)s

-- name: counts
SELECT second, count(*), sum(task = '') FROM wheelbeat_later
WHERE part IN %(parts)s AND second IN %(seconds)s GROUP BY second

-- name: ids
SELECT id, task = '' FROM wheelbeat_later WHERE part IN %(parts)s AND second = %(second)s

-- name: fits
octet_length(args) + octet_length(kwargs) + octet_length(options) <= %(most_bytes)s

-- name: rows
-- Texts that are too large for any message are not read.
SELECT second, id, at_ms, task, CASE WHEN {fits} THEN args END, CASE WHEN {fits} THEN kwargs END,
       CASE WHEN {fits} THEN options END
FROM wheelbeat_later WHERE part IN %(parts)s AND second = %(second)s AND id IN %(ids)s

-- name: last_second
SELECT max(second) FROM wheelbeat_later WHERE part = %(part)s

-- name: truncate
ALTER TABLE wheelbeat_later TRUNCATE PARTITION {table}
