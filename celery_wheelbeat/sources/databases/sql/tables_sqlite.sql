-- Written by tools/tables_sql.py from the migrations of django_wheelbeat; not edited by hand.

-- name: table_wheelbeat_changelog
CREATE TABLE "wheelbeat_changelog" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "monitor_id" bigint NULL, "operation" varchar(1) NOT NULL, "at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f000', 'NOW')) NOT NULL, "actor" varchar(150) DEFAULT '' NOT NULL, "reason" varchar(200) DEFAULT '' NOT NULL)

-- name: table_wheelbeat_installation
CREATE TABLE "wheelbeat_installation" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "uuid" varchar(36) NOT NULL, "schema_version" integer NOT NULL, "pruned_xid" bigint DEFAULT 0 NOT NULL, "pruned_id" bigint DEFAULT 0 NOT NULL)

-- name: table_wheelbeat_quarantine
CREATE TABLE "wheelbeat_quarantine" ("job_key" varchar(250) NOT NULL PRIMARY KEY, "definition_hash" varchar(64) NOT NULL, "reason" text NOT NULL, "since" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f000', 'NOW')) NOT NULL)

-- name: table_wheelbeat_beat
CREATE TABLE "wheelbeat_beat" ("beat_id" varchar(36) NOT NULL PRIMARY KEY, "namespace" varchar(200) NOT NULL, "host" varchar(200) NOT NULL, "pid" integer NOT NULL, "version" varchar(40) NOT NULL, "started_at" datetime NOT NULL, "seen_at" datetime NOT NULL, "marks" text NOT NULL, "status" text NOT NULL)

-- name: table_wheelbeat_actor
CREATE TABLE wheelbeat_actor (id integer PRIMARY KEY CHECK (id = 1), actor text NOT NULL, reason text NOT NULL)

-- name: table_wheelbeat_lease
CREATE TABLE "wheelbeat_lease" ("id" varchar(32) NOT NULL PRIMARY KEY, "owner" varchar(80) NOT NULL, "fence" bigint NOT NULL, "until_ms" bigint NOT NULL)

-- name: table_wheelbeat_audit
CREATE TABLE "wheelbeat_audit" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f000', 'NOW')) NOT NULL, "monitor_id" bigint NULL, "operation" varchar(1) NOT NULL, "monitors" bigint DEFAULT 1 NOT NULL, "changes" text NOT NULL, "actor" varchar(150) DEFAULT '' NOT NULL, "reason" varchar(200) DEFAULT '' NOT NULL)

-- name: table_wheelbeat_origin
CREATE TABLE "wheelbeat_origin" ("monitor_id" bigint NOT NULL PRIMARY KEY, "source" varchar(200) NOT NULL, "name" varchar(200) NOT NULL)

-- name: table_wheelbeat_claim
CREATE TABLE "wheelbeat_claim" ("id" varchar(32) NOT NULL PRIMARY KEY, "state" varchar(1) NOT NULL, "nonce" varchar(16) NOT NULL, "execution" varchar(8) NOT NULL, "digest" varchar(8) NOT NULL, "started_ms" bigint NOT NULL, "ended_ms" bigint NOT NULL, "expires_ms" bigint NOT NULL, "digest_rest" varchar(8) DEFAULT '' NOT NULL)

-- name: table_wheelbeat_monitor
CREATE TABLE "wheelbeat_monitor" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(200) NOT NULL UNIQUE, "task" varchar(200) NOT NULL, "args" text DEFAULT '[]' NOT NULL, "kwargs" text DEFAULT '{}' NOT NULL, "interval_ms" bigint NULL, "cron" varchar(255) DEFAULT '' NOT NULL, "timezone" varchar(64) DEFAULT 'UTC' NOT NULL, "day_rule" varchar(3) DEFAULT 'and' NOT NULL, "once_at" datetime NULL, "solar_event" varchar(24) DEFAULT '' NOT NULL, "solar_latitude" real NULL, "solar_longitude" real NULL, "jitter_s" integer NULL, "start_at" datetime NULL, "end_at" datetime NULL, "one_off" bool DEFAULT 0 NOT NULL, "misfire" varchar(6) DEFAULT 'auto' NOT NULL, "overlap" varchar(9) DEFAULT 'allow' NOT NULL, "queue" varchar(200) DEFAULT '' NOT NULL, "exchange" varchar(200) DEFAULT '' NOT NULL, "routing_key" varchar(200) DEFAULT '' NOT NULL, "priority" smallint NULL, "headers" text DEFAULT '{}' NOT NULL, "expires_s" real NULL, "expires_next" bool DEFAULT 0 NOT NULL, "options" text DEFAULT '{}' NOT NULL, "enabled" bool DEFAULT 1 NOT NULL, "pause_reason" varchar(200) DEFAULT '' NOT NULL, "description" text DEFAULT '' NOT NULL, "tags" varchar(255) DEFAULT '' NOT NULL, "incident_interval_ms" bigint NULL, "incident_until" datetime NULL, "effective_from" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f000', 'NOW')) NOT NULL, "finished_at" datetime NULL, "active_before" varchar(255) DEFAULT '' NOT NULL, CONSTRAINT "wheelbeat_monitor_one_schedule" CHECK ((("interval_ms" > 0 AND "interval_ms" IS NOT NULL AND "cron" = '' AND "once_at" IS NULL AND "solar_event" = '' AND "solar_latitude" IS NULL AND "solar_longitude" IS NULL) OR ("interval_ms" IS NULL AND NOT ("cron" = '') AND "once_at" IS NULL AND "solar_event" = '' AND "solar_latitude" IS NULL AND "solar_longitude" IS NULL) OR ("interval_ms" IS NULL AND "cron" = '' AND "once_at" IS NOT NULL AND "solar_event" = '' AND "solar_latitude" IS NULL AND "solar_longitude" IS NULL) OR ("interval_ms" IS NULL AND "cron" = '' AND "once_at" IS NULL AND NOT ("solar_event" = '') AND "solar_latitude" >= -90.0 AND "solar_latitude" IS NOT NULL AND "solar_latitude" <= 90.0 AND "solar_longitude" >= -180.0 AND "solar_longitude" IS NOT NULL AND "solar_longitude" <= 180.0))), CONSTRAINT "wheelbeat_monitor_named" CHECK ((NOT ("name" = '') AND NOT ("task" = ''))), CONSTRAINT "wheelbeat_monitor_incident" CHECK ((("incident_interval_ms" IS NULL AND "incident_until" IS NULL) OR ("incident_interval_ms" > 0 AND "incident_interval_ms" IS NOT NULL AND "incident_until" IS NOT NULL AND "once_at" IS NULL AND ("interval_ms" IS NULL OR "incident_interval_ms" < ("interval_ms"))))), CONSTRAINT "wheelbeat_monitor_start_before_end" CHECK (("start_at" IS NULL OR "end_at" IS NULL OR "start_at" < ("end_at"))), CONSTRAINT "wheelbeat_monitor_expires" CHECK (("expires_s" IS NULL OR (NOT "expires_next" AND "expires_s" > 0.0))), CONSTRAINT "wheelbeat_monitor_jitter" CHECK (("jitter_s" IS NULL OR "jitter_s" >= 0)), CONSTRAINT "wheelbeat_monitor_priority" CHECK (("priority" IS NULL OR ("priority" >= 0 AND "priority" <= 255))), CONSTRAINT "wheelbeat_monitor_choices" CHECK (("misfire" IN ('auto', 'skip', 'latest', 'all') AND "overlap" IN ('allow', 'skip', 'queue_one') AND "day_rule" IN ('and', 'or'))))

-- name: index_wheelbeat_beat_seen
CREATE INDEX "wheelbeat_beat_seen" ON "wheelbeat_beat" ("namespace", "seen_at")

-- name: index_wheelbeat_audit_at_1571fded
CREATE INDEX "wheelbeat_audit_at_1571fded" ON "wheelbeat_audit" ("at")

-- name: index_wheelbeat_audit_monitor_id_cca2fbc4
CREATE INDEX "wheelbeat_audit_monitor_id_cca2fbc4" ON "wheelbeat_audit" ("monitor_id")

-- name: index_wheelbeat_changelog_monitor
CREATE INDEX "wheelbeat_changelog_monitor" ON "wheelbeat_changelog" ("monitor_id", "at")

-- name: index_wheelbeat_audit_by_actor
CREATE INDEX "wheelbeat_audit_by_actor" ON "wheelbeat_audit" ("actor", "id" DESC)

-- name: index_wheelbeat_origin_source_515d8212
CREATE INDEX "wheelbeat_origin_source_515d8212" ON "wheelbeat_origin" ("source")

-- name: index_wheelbeat_claim_expires
CREATE INDEX "wheelbeat_claim_expires" ON "wheelbeat_claim" ("expires_ms")

-- name: index_wheelbeat_monitor_incident_end
CREATE INDEX "wheelbeat_monitor_incident_end" ON "wheelbeat_monitor" ("incident_until")

-- name: index_wheelbeat_monitor_by_task
CREATE INDEX "wheelbeat_monitor_by_task" ON "wheelbeat_monitor" ("task", "name")

-- name: index_wheelbeat_monitor_by_queue
CREATE INDEX "wheelbeat_monitor_by_queue" ON "wheelbeat_monitor" ("queue", "name")

-- name: index_wheelbeat_monitor_by_enabled
CREATE INDEX "wheelbeat_monitor_by_enabled" ON "wheelbeat_monitor" ("enabled", "name")

-- name: index_wheelbeat_monitor_by_interval
CREATE INDEX "wheelbeat_monitor_by_interval" ON "wheelbeat_monitor" ("interval_ms")

-- name: trigger_wheelbeat_log_insert
CREATE TRIGGER wheelbeat_log_insert AFTER INSERT ON wheelbeat_monitor
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (NEW.id, 'I', coalesce((SELECT actor FROM wheelbeat_actor), ''), coalesce((SELECT reason FROM wheelbeat_actor), ''));
END

-- name: trigger_wheelbeat_log_update
CREATE TRIGGER wheelbeat_log_update AFTER UPDATE ON wheelbeat_monitor
WHEN OLD.id = NEW.id AND (OLD.interval_ms IS NOT NEW.interval_ms OR OLD.cron IS NOT NEW.cron OR OLD.timezone IS NOT NEW.timezone OR OLD.day_rule IS NOT NEW.day_rule OR OLD.once_at IS NOT NEW.once_at OR OLD.solar_event IS NOT NEW.solar_event OR OLD.solar_latitude IS NOT NEW.solar_latitude OR OLD.solar_longitude IS NOT NEW.solar_longitude OR OLD.jitter_s IS NOT NEW.jitter_s OR OLD.start_at IS NOT NEW.start_at OR OLD.end_at IS NOT NEW.end_at OR OLD.one_off IS NOT NEW.one_off OR OLD.name IS NOT NEW.name OR OLD.task IS NOT NEW.task OR OLD.args IS NOT NEW.args OR OLD.kwargs IS NOT NEW.kwargs OR OLD.misfire IS NOT NEW.misfire OR OLD.overlap IS NOT NEW.overlap OR OLD.queue IS NOT NEW.queue OR OLD.exchange IS NOT NEW.exchange OR OLD.routing_key IS NOT NEW.routing_key OR OLD.priority IS NOT NEW.priority OR OLD.headers IS NOT NEW.headers OR OLD.expires_s IS NOT NEW.expires_s OR OLD.expires_next IS NOT NEW.expires_next OR OLD.options IS NOT NEW.options OR OLD.enabled IS NOT NEW.enabled OR OLD.incident_interval_ms IS NOT NEW.incident_interval_ms OR OLD.incident_until IS NOT NEW.incident_until OR OLD.finished_at IS NOT NEW.finished_at)
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (NEW.id, 'U', coalesce((SELECT actor FROM wheelbeat_actor), ''), coalesce((SELECT reason FROM wheelbeat_actor), ''));
END

-- name: trigger_wheelbeat_log_renumber
CREATE TRIGGER wheelbeat_log_renumber AFTER UPDATE OF id ON wheelbeat_monitor
WHEN OLD.id <> NEW.id
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (OLD.id, 'D', coalesce((SELECT actor FROM wheelbeat_actor), ''), coalesce((SELECT reason FROM wheelbeat_actor), '')),
           (NEW.id, 'I', coalesce((SELECT actor FROM wheelbeat_actor), ''), coalesce((SELECT reason FROM wheelbeat_actor), ''));
END

-- name: trigger_wheelbeat_log_delete
CREATE TRIGGER wheelbeat_log_delete AFTER DELETE ON wheelbeat_monitor
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (OLD.id, 'D', coalesce((SELECT actor FROM wheelbeat_actor), ''), coalesce((SELECT reason FROM wheelbeat_actor), ''));
END

-- name: trigger_wheelbeat_keep_instants
CREATE TRIGGER wheelbeat_keep_instants AFTER UPDATE ON wheelbeat_monitor
WHEN ((OLD.interval_ms IS NOT NEW.interval_ms OR OLD.cron IS NOT NEW.cron OR OLD.timezone IS NOT NEW.timezone OR OLD.day_rule IS NOT NEW.day_rule OR OLD.once_at IS NOT NEW.once_at OR OLD.solar_event IS NOT NEW.solar_event OR OLD.solar_latitude IS NOT NEW.solar_latitude OR OLD.solar_longitude IS NOT NEW.solar_longitude OR OLD.jitter_s IS NOT NEW.jitter_s OR OLD.start_at IS NOT NEW.start_at OR OLD.end_at IS NOT NEW.end_at OR OLD.one_off IS NOT NEW.one_off) OR (NEW.enabled AND NOT OLD.enabled))
  OR NEW.effective_from < OLD.effective_from
  OR (NEW.effective_from = OLD.effective_from AND NEW.finished_at IS NULL AND OLD.finished_at IS NOT NULL)
BEGIN
    UPDATE wheelbeat_monitor
    SET effective_from = CASE WHEN ((OLD.interval_ms IS NOT NEW.interval_ms OR OLD.cron IS NOT NEW.cron OR OLD.timezone IS NOT NEW.timezone OR OLD.day_rule IS NOT NEW.day_rule OR OLD.once_at IS NOT NEW.once_at OR OLD.solar_event IS NOT NEW.solar_event OR OLD.solar_latitude IS NOT NEW.solar_latitude OR OLD.solar_longitude IS NOT NEW.solar_longitude OR OLD.jitter_s IS NOT NEW.jitter_s OR OLD.start_at IS NOT NEW.start_at OR OLD.end_at IS NOT NEW.end_at OR OLD.one_off IS NOT NEW.one_off) OR (NEW.enabled AND NOT OLD.enabled)) THEN strftime('%Y-%m-%d %H:%M:%f000', 'now') ELSE OLD.effective_from END,
        finished_at = CASE WHEN NEW.once_at = OLD.once_at OR NOT ((OLD.interval_ms IS NOT NEW.interval_ms OR OLD.cron IS NOT NEW.cron OR OLD.timezone IS NOT NEW.timezone OR OLD.day_rule IS NOT NEW.day_rule OR OLD.once_at IS NOT NEW.once_at OR OLD.solar_event IS NOT NEW.solar_event OR OLD.solar_latitude IS NOT NEW.solar_latitude OR OLD.solar_longitude IS NOT NEW.solar_longitude OR OLD.jitter_s IS NOT NEW.jitter_s OR OLD.start_at IS NOT NEW.start_at OR OLD.end_at IS NOT NEW.end_at OR OLD.one_off IS NOT NEW.one_off) OR (NEW.enabled AND NOT OLD.enabled))
            THEN coalesce(NEW.finished_at, OLD.finished_at) END
    WHERE id = NEW.id;
END

-- name: trigger_wheelbeat_keep_stretches
CREATE TRIGGER wheelbeat_keep_stretches AFTER UPDATE ON wheelbeat_monitor
WHEN (OLD.interval_ms IS NOT NEW.interval_ms OR OLD.cron IS NOT NEW.cron OR OLD.timezone IS NOT NEW.timezone OR OLD.day_rule IS NOT NEW.day_rule OR OLD.once_at IS NOT NEW.once_at OR OLD.solar_event IS NOT NEW.solar_event OR OLD.solar_latitude IS NOT NEW.solar_latitude OR OLD.solar_longitude IS NOT NEW.solar_longitude OR OLD.jitter_s IS NOT NEW.jitter_s OR OLD.start_at IS NOT NEW.start_at OR OLD.end_at IS NOT NEW.end_at OR OLD.one_off IS NOT NEW.one_off) OR (OLD.enabled AND NOT NEW.enabled) OR NEW.active_before IS NOT OLD.active_before
BEGIN
    UPDATE wheelbeat_monitor
    SET active_before = CASE
        WHEN (OLD.interval_ms IS NOT NEW.interval_ms OR OLD.cron IS NOT NEW.cron OR OLD.timezone IS NOT NEW.timezone OR OLD.day_rule IS NOT NEW.day_rule OR OLD.once_at IS NOT NEW.once_at OR OLD.solar_event IS NOT NEW.solar_event OR OLD.solar_latitude IS NOT NEW.solar_latitude OR OLD.solar_longitude IS NOT NEW.solar_longitude OR OLD.jitter_s IS NOT NEW.jitter_s OR OLD.start_at IS NOT NEW.start_at OR OLD.end_at IS NOT NEW.end_at OR OLD.one_off IS NOT NEW.one_off) THEN ''
        WHEN OLD.enabled AND NOT NEW.enabled THEN substr(OLD.active_before || printf('%015d-%015d,', strftime('%s', substr(OLD.effective_from, 1, 19)) * 1000 + CAST(substr(OLD.effective_from, 21, 3) AS INTEGER), strftime('%s', 'now') * 1000 + CAST(substr(strftime('%f', 'now'), 4, 3) AS INTEGER)), -224)
        ELSE OLD.active_before
    END
    WHERE id = NEW.id;
END
