-- Written by tools/tables_sql.py from the migrations of django_wheelbeat; not edited by hand.

-- name: table_wheelbeat_audit
CREATE TABLE IF NOT EXISTS `wheelbeat_audit` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `at` datetime(6) NOT NULL DEFAULT utc_timestamp(6),
  `monitor_id` bigint(20) DEFAULT NULL,
  `operation` varchar(1) NOT NULL,
  `monitors` bigint(20) NOT NULL DEFAULT 1,
  `changes` longtext NOT NULL,
  `actor` varchar(150) NOT NULL DEFAULT '',
  `reason` varchar(200) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`),
  KEY `wheelbeat_audit_at_1571fded` (`at`),
  KEY `wheelbeat_audit_monitor_id_cca2fbc4` (`monitor_id`),
  KEY `wheelbeat_audit_by_actor` (`actor`,`id` DESC)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_beat
CREATE TABLE IF NOT EXISTS `wheelbeat_beat` (
  `beat_id` varchar(36) NOT NULL,
  `namespace` varchar(200) NOT NULL,
  `host` varchar(200) NOT NULL,
  `pid` int(11) NOT NULL,
  `version` varchar(40) NOT NULL,
  `started_at` datetime(6) NOT NULL,
  `seen_at` datetime(6) NOT NULL,
  `marks` longtext NOT NULL,
  `status` longtext NOT NULL,
  PRIMARY KEY (`beat_id`),
  KEY `wheelbeat_beat_seen` (`namespace`,`seen_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_changelog
CREATE TABLE IF NOT EXISTS `wheelbeat_changelog` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `monitor_id` bigint(20) DEFAULT NULL,
  `operation` varchar(1) NOT NULL,
  `at` datetime(6) NOT NULL DEFAULT utc_timestamp(6),
  `actor` varchar(150) NOT NULL DEFAULT '',
  `reason` varchar(200) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`),
  KEY `wheelbeat_changelog_monitor` (`monitor_id`,`at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_claim
CREATE TABLE IF NOT EXISTS `wheelbeat_claim` (
  `id` varchar(32) NOT NULL,
  `state` varchar(1) NOT NULL,
  `nonce` varchar(16) NOT NULL,
  `execution` varchar(8) NOT NULL,
  `digest` varchar(8) NOT NULL,
  `started_ms` bigint(20) NOT NULL,
  `ended_ms` bigint(20) NOT NULL,
  `expires_ms` bigint(20) NOT NULL,
  `digest_rest` varchar(8) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`),
  KEY `wheelbeat_claim_expires` (`expires_ms`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_installation
CREATE TABLE IF NOT EXISTS `wheelbeat_installation` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `uuid` varchar(36) NOT NULL,
  `schema_version` int(11) NOT NULL,
  `pruned_xid` bigint(20) NOT NULL DEFAULT 0,
  `pruned_id` bigint(20) NOT NULL DEFAULT 0,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_lease
CREATE TABLE IF NOT EXISTS `wheelbeat_lease` (
  `id` varchar(32) NOT NULL,
  `owner` varchar(80) NOT NULL,
  `fence` bigint(20) NOT NULL,
  `until_ms` bigint(20) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_monitor
CREATE TABLE IF NOT EXISTS `wheelbeat_monitor` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `name` varchar(200) NOT NULL,
  `task` varchar(200) NOT NULL,
  `args` longtext NOT NULL DEFAULT '[]',
  `kwargs` longtext NOT NULL DEFAULT '{}',
  `interval_ms` bigint(20) DEFAULT NULL,
  `cron` varchar(255) NOT NULL DEFAULT '',
  `timezone` varchar(64) NOT NULL DEFAULT 'UTC',
  `day_rule` varchar(3) NOT NULL DEFAULT 'and',
  `once_at` datetime(6) DEFAULT NULL,
  `solar_event` varchar(24) NOT NULL DEFAULT '',
  `solar_latitude` double DEFAULT NULL,
  `solar_longitude` double DEFAULT NULL,
  `jitter_s` int(11) DEFAULT NULL,
  `start_at` datetime(6) DEFAULT NULL,
  `end_at` datetime(6) DEFAULT NULL,
  `one_off` tinyint(1) NOT NULL DEFAULT 0,
  `misfire` varchar(6) NOT NULL DEFAULT 'auto',
  `overlap` varchar(9) NOT NULL DEFAULT 'allow',
  `queue` varchar(200) NOT NULL DEFAULT '',
  `exchange` varchar(200) NOT NULL DEFAULT '',
  `routing_key` varchar(200) NOT NULL DEFAULT '',
  `priority` smallint(6) DEFAULT NULL,
  `headers` longtext NOT NULL DEFAULT '{}',
  `expires_s` double DEFAULT NULL,
  `expires_next` tinyint(1) NOT NULL DEFAULT 0,
  `options` longtext NOT NULL DEFAULT '{}',
  `enabled` tinyint(1) NOT NULL DEFAULT 1,
  `pause_reason` varchar(200) NOT NULL DEFAULT '',
  `description` longtext NOT NULL DEFAULT '',
  `tags` varchar(255) NOT NULL DEFAULT '',
  `incident_interval_ms` bigint(20) DEFAULT NULL,
  `incident_until` datetime(6) DEFAULT NULL,
  `effective_from` datetime(6) NOT NULL DEFAULT utc_timestamp(6),
  `finished_at` datetime(6) DEFAULT NULL,
  `active_before` varchar(255) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`),
  UNIQUE KEY `name` (`name`),
  KEY `wheelbeat_monitor_incident_end` (`incident_until`),
  KEY `wheelbeat_monitor_by_task` (`task`,`name`),
  KEY `wheelbeat_monitor_by_queue` (`queue`,`name`),
  KEY `wheelbeat_monitor_by_enabled` (`enabled`,`name`),
  KEY `wheelbeat_monitor_by_interval` (`interval_ms`),
  CONSTRAINT `wheelbeat_monitor_one_schedule` CHECK (`interval_ms` > 0 and `interval_ms` is not null and `cron` = '' and `once_at` is null and `solar_event` = '' and `solar_latitude` is null and `solar_longitude` is null or `interval_ms` is null and `cron` <> '' and `once_at` is null and `solar_event` = '' and `solar_latitude` is null and `solar_longitude` is null or `interval_ms` is null and `cron` = '' and `once_at` is not null and `solar_event` = '' and `solar_latitude` is null and `solar_longitude` is null or `interval_ms` is null and `cron` = '' and `once_at` is null and `solar_event` <> '' and `solar_latitude` >= -90.0e0 and `solar_latitude` is not null and `solar_latitude` <= 90.0e0 and `solar_longitude` >= -180.0e0 and `solar_longitude` is not null and `solar_longitude` <= 180.0e0),
  CONSTRAINT `wheelbeat_monitor_named` CHECK (`name` <> '' and `task` <> ''),
  CONSTRAINT `wheelbeat_monitor_incident` CHECK (`incident_interval_ms` is null and `incident_until` is null or `incident_interval_ms` > 0 and `incident_interval_ms` is not null and `incident_until` is not null and `once_at` is null and (`interval_ms` is null or `incident_interval_ms` < `interval_ms`)),
  CONSTRAINT `wheelbeat_monitor_start_before_end` CHECK (`start_at` is null or `end_at` is null or `start_at` < `end_at`),
  CONSTRAINT `wheelbeat_monitor_expires` CHECK (`expires_s` is null or `expires_next` = 0x00 and `expires_s` > 0.0e0),
  CONSTRAINT `wheelbeat_monitor_jitter` CHECK (`jitter_s` is null or `jitter_s` >= 0),
  CONSTRAINT `wheelbeat_monitor_priority` CHECK (`priority` is null or `priority` >= 0 and `priority` <= 255),
  CONSTRAINT `wheelbeat_monitor_choices` CHECK (`misfire` in ('auto','skip','latest','all') and `overlap` in ('allow','skip','queue_one') and `day_rule` in ('and','or'))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_origin
CREATE TABLE IF NOT EXISTS `wheelbeat_origin` (
  `monitor_id` bigint(20) NOT NULL,
  `source` varchar(200) NOT NULL,
  `name` varchar(200) NOT NULL,
  PRIMARY KEY (`monitor_id`),
  KEY `wheelbeat_origin_source_515d8212` (`source`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: table_wheelbeat_quarantine
CREATE TABLE IF NOT EXISTS `wheelbeat_quarantine` (
  `job_key` varchar(250) NOT NULL,
  `definition_hash` varchar(64) NOT NULL,
  `reason` longtext NOT NULL,
  `since` datetime(6) NOT NULL DEFAULT utc_timestamp(6),
  PRIMARY KEY (`job_key`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci

-- name: trigger_wheelbeat_log_delete
CREATE TRIGGER IF NOT EXISTS wheelbeat_log_delete AFTER DELETE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
    VALUES (OLD.id, 'D', UTC_TIMESTAMP(6), left(coalesce(@wheelbeat_actor, user()), 150), left(coalesce(@wheelbeat_reason, ''), 200));
END

-- name: trigger_wheelbeat_log_insert
CREATE TRIGGER IF NOT EXISTS wheelbeat_log_insert AFTER INSERT ON wheelbeat_monitor FOR EACH ROW
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
    VALUES (NEW.id, 'I', UTC_TIMESTAMP(6), left(coalesce(@wheelbeat_actor, user()), 150), left(coalesce(@wheelbeat_reason, ''), 200));
END

-- name: trigger_wheelbeat_log_update
CREATE TRIGGER IF NOT EXISTS wheelbeat_log_update AFTER UPDATE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    IF OLD.id <> NEW.id THEN
        INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
        VALUES (OLD.id, 'D', UTC_TIMESTAMP(6), left(coalesce(@wheelbeat_actor, user()), 150), left(coalesce(@wheelbeat_reason, ''), 200)),
               (NEW.id, 'I', UTC_TIMESTAMP(6), left(coalesce(@wheelbeat_actor, user()), 150), left(coalesce(@wheelbeat_reason, ''), 200));
    ELSEIF (NOT (BINARY OLD.interval_ms <=> BINARY NEW.interval_ms) OR NOT (BINARY OLD.cron <=> BINARY NEW.cron) OR NOT (BINARY OLD.timezone <=> BINARY NEW.timezone) OR NOT (BINARY OLD.day_rule <=> BINARY NEW.day_rule) OR NOT (BINARY OLD.once_at <=> BINARY NEW.once_at) OR NOT (BINARY OLD.solar_event <=> BINARY NEW.solar_event) OR NOT (BINARY OLD.solar_latitude <=> BINARY NEW.solar_latitude) OR NOT (BINARY OLD.solar_longitude <=> BINARY NEW.solar_longitude) OR NOT (BINARY OLD.jitter_s <=> BINARY NEW.jitter_s) OR NOT (BINARY OLD.start_at <=> BINARY NEW.start_at) OR NOT (BINARY OLD.end_at <=> BINARY NEW.end_at) OR NOT (BINARY OLD.one_off <=> BINARY NEW.one_off) OR NOT (BINARY OLD.name <=> BINARY NEW.name) OR NOT (BINARY OLD.task <=> BINARY NEW.task) OR NOT (BINARY OLD.args <=> BINARY NEW.args) OR NOT (BINARY OLD.kwargs <=> BINARY NEW.kwargs) OR NOT (BINARY OLD.misfire <=> BINARY NEW.misfire) OR NOT (BINARY OLD.overlap <=> BINARY NEW.overlap) OR NOT (BINARY OLD.queue <=> BINARY NEW.queue) OR NOT (BINARY OLD.exchange <=> BINARY NEW.exchange) OR NOT (BINARY OLD.routing_key <=> BINARY NEW.routing_key) OR NOT (BINARY OLD.priority <=> BINARY NEW.priority) OR NOT (BINARY OLD.headers <=> BINARY NEW.headers) OR NOT (BINARY OLD.expires_s <=> BINARY NEW.expires_s) OR NOT (BINARY OLD.expires_next <=> BINARY NEW.expires_next) OR NOT (BINARY OLD.options <=> BINARY NEW.options) OR NOT (BINARY OLD.enabled <=> BINARY NEW.enabled) OR NOT (BINARY OLD.incident_interval_ms <=> BINARY NEW.incident_interval_ms) OR NOT (BINARY OLD.incident_until <=> BINARY NEW.incident_until) OR NOT (BINARY OLD.finished_at <=> BINARY NEW.finished_at)) THEN
        INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
        VALUES (NEW.id, 'U', UTC_TIMESTAMP(6), left(coalesce(@wheelbeat_actor, user()), 150), left(coalesce(@wheelbeat_reason, ''), 200));
    END IF;
END

-- name: trigger_wheelbeat_keep_instants
CREATE TRIGGER IF NOT EXISTS wheelbeat_keep_instants BEFORE UPDATE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    IF ((NOT (BINARY OLD.interval_ms <=> BINARY NEW.interval_ms) OR NOT (BINARY OLD.cron <=> BINARY NEW.cron) OR NOT (BINARY OLD.timezone <=> BINARY NEW.timezone) OR NOT (BINARY OLD.day_rule <=> BINARY NEW.day_rule) OR NOT (BINARY OLD.once_at <=> BINARY NEW.once_at) OR NOT (BINARY OLD.solar_event <=> BINARY NEW.solar_event) OR NOT (BINARY OLD.solar_latitude <=> BINARY NEW.solar_latitude) OR NOT (BINARY OLD.solar_longitude <=> BINARY NEW.solar_longitude) OR NOT (BINARY OLD.jitter_s <=> BINARY NEW.jitter_s) OR NOT (BINARY OLD.start_at <=> BINARY NEW.start_at) OR NOT (BINARY OLD.end_at <=> BINARY NEW.end_at) OR NOT (BINARY OLD.one_off <=> BINARY NEW.one_off)) OR (NEW.enabled AND NOT OLD.enabled)) THEN
        SET NEW.effective_from = UTC_TIMESTAMP(6),
            NEW.finished_at = CASE WHEN NEW.once_at = OLD.once_at THEN coalesce(NEW.finished_at, OLD.finished_at) END;
    ELSEIF NEW.effective_from <= OLD.effective_from THEN
        SET NEW.effective_from = OLD.effective_from, NEW.finished_at = coalesce(NEW.finished_at, OLD.finished_at);
    END IF;
END

-- name: trigger_wheelbeat_keep_stretches
CREATE TRIGGER IF NOT EXISTS wheelbeat_keep_stretches BEFORE UPDATE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    SET NEW.active_before = CASE
        WHEN (NOT (BINARY OLD.interval_ms <=> BINARY NEW.interval_ms) OR NOT (BINARY OLD.cron <=> BINARY NEW.cron) OR NOT (BINARY OLD.timezone <=> BINARY NEW.timezone) OR NOT (BINARY OLD.day_rule <=> BINARY NEW.day_rule) OR NOT (BINARY OLD.once_at <=> BINARY NEW.once_at) OR NOT (BINARY OLD.solar_event <=> BINARY NEW.solar_event) OR NOT (BINARY OLD.solar_latitude <=> BINARY NEW.solar_latitude) OR NOT (BINARY OLD.solar_longitude <=> BINARY NEW.solar_longitude) OR NOT (BINARY OLD.jitter_s <=> BINARY NEW.jitter_s) OR NOT (BINARY OLD.start_at <=> BINARY NEW.start_at) OR NOT (BINARY OLD.end_at <=> BINARY NEW.end_at) OR NOT (BINARY OLD.one_off <=> BINARY NEW.one_off)) THEN ''
        WHEN OLD.enabled AND NOT NEW.enabled THEN right(concat(OLD.active_before, concat(lpad(timestampdiff(MICROSECOND, '1970-01-01', OLD.effective_from) DIV 1000, 15, '0'), '-', lpad(timestampdiff(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000, 15, '0'), ',')), 224)
        ELSE OLD.active_before
    END;
END
