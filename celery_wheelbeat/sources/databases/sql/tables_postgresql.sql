-- Written by tools/tables_sql.py from the migrations of django_wheelbeat; not edited by hand.

-- name: function_wheelbeat_is_sendable
CREATE FUNCTION {schema}.wheelbeat_is_sendable(args text, kwargs text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT
    AS $_$
BEGIN
    RETURN (args OPERATOR(pg_catalog.=) '[]' OR NOT args::pg_catalog.jsonb OPERATOR(pg_catalog.@?) 'strict $.** ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308)')
        AND (kwargs OPERATOR(pg_catalog.=) '{}' OR NOT kwargs::pg_catalog.jsonb OPERATOR(pg_catalog.@?) 'strict $.** ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308)');
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END
$_$;

-- name: function_wheelbeat_keep_instants
CREATE FUNCTION {schema}.wheelbeat_keep_instants() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF (((OLD.interval_ms, OLD.cron, OLD.timezone, OLD.day_rule, OLD.once_at, OLD.solar_event, OLD.solar_latitude, OLD.solar_longitude, OLD.jitter_s, OLD.start_at, OLD.end_at, OLD.one_off) IS DISTINCT FROM (NEW.interval_ms, NEW.cron, NEW.timezone, NEW.day_rule, NEW.once_at, NEW.solar_event, NEW.solar_latitude, NEW.solar_longitude, NEW.jitter_s, NEW.start_at, NEW.end_at, NEW.one_off)) OR (NEW.enabled AND NOT OLD.enabled)) THEN
        NEW.effective_from := statement_timestamp();
        NEW.finished_at := CASE WHEN NEW.once_at = OLD.once_at THEN coalesce(NEW.finished_at, OLD.finished_at) END;
    ELSIF NEW.effective_from <= OLD.effective_from THEN
        NEW.effective_from := OLD.effective_from;
        NEW.finished_at := coalesce(NEW.finished_at, OLD.finished_at);
    END IF;
    RETURN NEW;
END
$$;

-- name: function_wheelbeat_keep_stretches
CREATE FUNCTION {schema}.wheelbeat_keep_stretches() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    NEW.active_before := CASE
        WHEN ((OLD.interval_ms, OLD.cron, OLD.timezone, OLD.day_rule, OLD.once_at, OLD.solar_event, OLD.solar_latitude, OLD.solar_longitude, OLD.jitter_s, OLD.start_at, OLD.end_at, OLD.one_off) IS DISTINCT FROM (NEW.interval_ms, NEW.cron, NEW.timezone, NEW.day_rule, NEW.once_at, NEW.solar_event, NEW.solar_latitude, NEW.solar_longitude, NEW.jitter_s, NEW.start_at, NEW.end_at, NEW.one_off)) THEN ''
        WHEN OLD.enabled AND NOT NEW.enabled THEN right(OLD.active_before || concat(lpad(trunc(extract(epoch FROM OLD.effective_from) * 1000)::bigint::text, 15, '0'), '-', lpad(trunc(extract(epoch FROM statement_timestamp()) * 1000)::bigint::text, 15, '0'), ','), 224)
        ELSE OLD.active_before
    END;
    RETURN NEW;
END
$$;

-- name: function_wheelbeat_log_changes
CREATE FUNCTION {schema}.wheelbeat_log_changes() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    AS $$
DECLARE
    who text := left(coalesce(nullif(current_setting('wheelbeat.actor', true), ''), session_user), 150);
    why text := left(coalesce(current_setting('wheelbeat.reason', true), ''), 200);
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {schema}.wheelbeat_changelog (monitor_id, operation, actor, reason)
        SELECT n.id, 'I', who, why FROM new_rows n;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO {schema}.wheelbeat_changelog (monitor_id, operation, actor, reason)
        SELECT o.id, 'D', who, why FROM old_rows o;
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO {schema}.wheelbeat_changelog (monitor_id, operation, actor, reason)
        SELECT coalesce(n.id, o.id), CASE WHEN o.id IS NULL THEN 'I' WHEN n.id IS NULL THEN 'D' ELSE 'U' END, who, why
        FROM old_rows o FULL OUTER JOIN new_rows n ON o.id = n.id
        WHERE o.id IS NULL OR n.id IS NULL OR ((o.interval_ms, o.cron, o.timezone, o.day_rule, o.once_at, o.solar_event, o.solar_latitude, o.solar_longitude, o.jitter_s, o.start_at, o.end_at, o.one_off, o.name, o.task, o.args, o.kwargs, o.misfire, o.overlap, o.queue, o.exchange, o.routing_key, o.priority, o.headers, o.expires_s, o.expires_next, o.options, o.enabled, o.incident_interval_ms, o.incident_until, o.finished_at) IS DISTINCT FROM (n.interval_ms, n.cron, n.timezone, n.day_rule, n.once_at, n.solar_event, n.solar_latitude, n.solar_longitude, n.jitter_s, n.start_at, n.end_at, n.one_off, n.name, n.task, n.args, n.kwargs, n.misfire, n.overlap, n.queue, n.exchange, n.routing_key, n.priority, n.headers, n.expires_s, n.expires_next, n.options, n.enabled, n.incident_interval_ms, n.incident_until, n.finished_at));
    ELSE
        INSERT INTO {schema}.wheelbeat_changelog (monitor_id, operation, actor, reason)
        VALUES (NULL, 'T', who, why);
    END IF;
    RETURN NULL;
END
$$;

-- name: grant_is_sendable
GRANT EXECUTE ON FUNCTION {schema}.wheelbeat_is_sendable(text, text) TO PUBLIC

-- name: table_wheelbeat_audit
CREATE TABLE {schema}.wheelbeat_audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    monitor_id bigint,
    operation character varying(1) NOT NULL,
    monitors bigint DEFAULT 1 NOT NULL,
    changes text NOT NULL,
    actor character varying(150) DEFAULT ''::character varying NOT NULL,
    reason character varying(200) DEFAULT ''::character varying NOT NULL
);

-- name: sequence_wheelbeat_audit_id_seq
ALTER TABLE {schema}.wheelbeat_audit ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME {schema}.wheelbeat_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- name: table_wheelbeat_beat
CREATE TABLE {schema}.wheelbeat_beat (
    beat_id character varying(36) NOT NULL,
    namespace character varying(200) NOT NULL,
    host character varying(200) NOT NULL,
    pid integer NOT NULL,
    version character varying(40) NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    marks text NOT NULL,
    status text NOT NULL
);

-- name: table_wheelbeat_changelog
CREATE TABLE {schema}.wheelbeat_changelog (
    id bigint NOT NULL,
    monitor_id bigint,
    operation character varying(1) NOT NULL,
    at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    actor character varying(150) DEFAULT ''::character varying NOT NULL,
    reason character varying(200) DEFAULT ''::character varying NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL
);

-- name: sequence_wheelbeat_changelog_id_seq
ALTER TABLE {schema}.wheelbeat_changelog ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME {schema}.wheelbeat_changelog_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- name: table_wheelbeat_claim
CREATE TABLE {schema}.wheelbeat_claim (
    id character varying(32) NOT NULL,
    state character varying(1) NOT NULL,
    nonce character varying(16) NOT NULL,
    execution character varying(8) NOT NULL,
    digest character varying(8) NOT NULL,
    started_ms bigint NOT NULL,
    ended_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    digest_rest character varying(8) DEFAULT ''::character varying NOT NULL
);

-- name: table_wheelbeat_installation
CREATE TABLE {schema}.wheelbeat_installation (
    id bigint NOT NULL,
    uuid character varying(36) NOT NULL,
    schema_version integer NOT NULL,
    pruned_xid bigint DEFAULT 0 NOT NULL,
    pruned_id bigint DEFAULT 0 NOT NULL
);

-- name: sequence_wheelbeat_installation_id_seq
ALTER TABLE {schema}.wheelbeat_installation ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME {schema}.wheelbeat_installation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- name: table_wheelbeat_lease
CREATE TABLE {schema}.wheelbeat_lease (
    id character varying(32) NOT NULL,
    owner character varying(80) NOT NULL,
    fence bigint NOT NULL,
    until_ms bigint NOT NULL
);

-- name: table_wheelbeat_monitor
CREATE TABLE {schema}.wheelbeat_monitor (
    id bigint NOT NULL,
    name character varying(200) NOT NULL,
    task character varying(200) NOT NULL,
    args text DEFAULT '[]'::text NOT NULL,
    kwargs text DEFAULT '{}'::text NOT NULL,
    interval_ms bigint,
    cron character varying(255) DEFAULT ''::character varying NOT NULL,
    timezone character varying(64) DEFAULT 'UTC'::character varying NOT NULL,
    day_rule character varying(3) DEFAULT 'and'::character varying NOT NULL,
    once_at timestamp with time zone,
    solar_event character varying(24) DEFAULT ''::character varying NOT NULL,
    solar_latitude double precision,
    solar_longitude double precision,
    jitter_s integer,
    start_at timestamp with time zone,
    end_at timestamp with time zone,
    one_off boolean DEFAULT false NOT NULL,
    misfire character varying(6) DEFAULT 'auto'::character varying NOT NULL,
    overlap character varying(9) DEFAULT 'allow'::character varying NOT NULL,
    queue character varying(200) DEFAULT ''::character varying NOT NULL,
    exchange character varying(200) DEFAULT ''::character varying NOT NULL,
    routing_key character varying(200) DEFAULT ''::character varying NOT NULL,
    priority smallint,
    headers text DEFAULT '{}'::text NOT NULL,
    expires_s double precision,
    expires_next boolean DEFAULT false NOT NULL,
    options text DEFAULT '{}'::text NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    pause_reason character varying(200) DEFAULT ''::character varying NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    tags character varying(255) DEFAULT ''::character varying NOT NULL,
    incident_interval_ms bigint,
    incident_until timestamp with time zone,
    effective_from timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    packed bytea GENERATED ALWAYS AS (
CASE
    WHEN ((once_at IS NULL) AND ((solar_event)::text = ''::text) AND (start_at IS NULL) AND (end_at IS NULL) AND (finished_at IS NULL) AND (incident_interval_ms IS NULL) AND (incident_until IS NULL) AND ((octet_length(args) + octet_length(kwargs)) <= 16384) AND isfinite(effective_from) AND (octet_length((name)::text) <= 200) AND (((name)::text COLLATE "C") >= '!'::text) AND (((name)::text COLLATE "C") < E'\x7f'::text) AND ("left"(args, 1) = '['::text) AND ("right"(args, 1) = ']'::text) AND ("left"(kwargs, 1) = '{'::text) AND ("right"(kwargs, 1) = '}'::text) AND (strpos(args, '"__type__"'::text) = 0) AND (strpos(kwargs, '"__type__"'::text) = 0) AND ((strpos(args, '\u00'::text) = 0) OR (args !~ '\\u00[567]'::text)) AND ((strpos(kwargs, '\u00'::text) = 0) OR (kwargs !~ '\\u00[567]'::text)) AND ((octet_length(args) < 200) OR (args !~ '[0-9]{200}'::text)) AND ((octet_length(kwargs) < 200) OR (kwargs !~ '[0-9]{200}'::text)) AND {schema}.wheelbeat_is_sendable(args, kwargs)) THEN (((((((int8send(id) || SUBSTRING(sha256((((((int8send((((((octet_length((task)::text))::bigint << 48) | ((octet_length((cron)::text))::bigint << 32)) | ((octet_length((queue)::text))::bigint << 16)) | (octet_length((exchange)::text))::bigint)) || int8send((((((octet_length((routing_key)::text))::bigint << 48) | ((octet_length((timezone)::text))::bigint << 32)) | ((octet_length((day_rule)::text))::bigint << 16)) | (octet_length((misfire)::text))::bigint))) || int8send((((octet_length((overlap)::text))::bigint << 48) | (octet_length(headers))::bigint))) || int8send(((((((((((COALESCE(jitter_s, 0))::bigint << 32) | (((COALESCE((priority)::integer, 0))::bigint & (65535)::bigint) << 16)) | ((((jitter_s IS NULL))::integer << 6))::bigint) | ((((priority IS NULL))::integer << 5))::bigint) | ((((interval_ms IS NULL))::integer << 4))::bigint) | ((((expires_s IS NULL))::integer << 3))::bigint) | (((enabled)::integer << 2))::bigint) | (((one_off)::integer << 1))::bigint) | ((expires_next)::integer)::bigint))) || float8send(COALESCE(expires_s, (0)::double precision))) || decode(replace((((((((((((task)::text || (cron)::text) || (queue)::text) || (exchange)::text) || (routing_key)::text) || (timezone)::text) || (day_rule)::text) || (misfire)::text) || (overlap)::text) || headers) || options), '\'::text, '\\'::text), 'escape'::text))) FROM 1 FOR 16)) || int8send(COALESCE(interval_ms, (0)::bigint))) || timestamptz_send(effective_from)) || int2send((octet_length((name)::text))::smallint)) || int2send((octet_length(args))::smallint)) || int2send((octet_length(kwargs))::smallint)) || SUBSTRING(sha256((int8send((((octet_length((name)::text))::bigint << 32) | (octet_length(args))::bigint)) || decode(replace((((name)::text || args) || kwargs), '\'::text, '\\'::text), 'escape'::text))) FROM 1 FOR 8))
    ELSE NULL::bytea
END) STORED,
    active_before character varying(255) DEFAULT ''::character varying NOT NULL,
    CONSTRAINT wheelbeat_monitor_choices CHECK ((((misfire)::text = ANY ((ARRAY['auto'::character varying, 'skip'::character varying, 'latest'::character varying, 'all'::character varying])::text[])) AND ((overlap)::text = ANY ((ARRAY['allow'::character varying, 'skip'::character varying, 'queue_one'::character varying])::text[])) AND ((day_rule)::text = ANY ((ARRAY['and'::character varying, 'or'::character varying])::text[])))),
    CONSTRAINT wheelbeat_monitor_expires CHECK (((expires_s IS NULL) OR ((NOT expires_next) AND (expires_s > (0.0)::double precision)))),
    CONSTRAINT wheelbeat_monitor_incident CHECK ((((incident_interval_ms IS NULL) AND (incident_until IS NULL)) OR ((incident_interval_ms > 0) AND (incident_interval_ms IS NOT NULL) AND (incident_until IS NOT NULL) AND (once_at IS NULL) AND ((interval_ms IS NULL) OR (incident_interval_ms < interval_ms))))),
    CONSTRAINT wheelbeat_monitor_jitter CHECK (((jitter_s IS NULL) OR (jitter_s >= 0))),
    CONSTRAINT wheelbeat_monitor_named CHECK (((NOT ((name)::text = ''::text)) AND (NOT ((task)::text = ''::text)))),
    CONSTRAINT wheelbeat_monitor_one_schedule CHECK ((((interval_ms > 0) AND (interval_ms IS NOT NULL) AND ((cron)::text = ''::text) AND (once_at IS NULL) AND ((solar_event)::text = ''::text) AND (solar_latitude IS NULL) AND (solar_longitude IS NULL)) OR ((interval_ms IS NULL) AND (NOT ((cron)::text = ''::text)) AND (once_at IS NULL) AND ((solar_event)::text = ''::text) AND (solar_latitude IS NULL) AND (solar_longitude IS NULL)) OR ((interval_ms IS NULL) AND ((cron)::text = ''::text) AND (once_at IS NOT NULL) AND ((solar_event)::text = ''::text) AND (solar_latitude IS NULL) AND (solar_longitude IS NULL)) OR ((interval_ms IS NULL) AND ((cron)::text = ''::text) AND (once_at IS NULL) AND (NOT ((solar_event)::text = ''::text)) AND (solar_latitude >= ('-90.0'::numeric)::double precision) AND (solar_latitude IS NOT NULL) AND (solar_latitude <= (90.0)::double precision) AND (solar_longitude >= ('-180.0'::numeric)::double precision) AND (solar_longitude IS NOT NULL) AND (solar_longitude <= (180.0)::double precision)))),
    CONSTRAINT wheelbeat_monitor_priority CHECK (((priority IS NULL) OR ((priority >= 0) AND (priority <= 255)))),
    CONSTRAINT wheelbeat_monitor_start_before_end CHECK (((start_at IS NULL) OR (end_at IS NULL) OR (start_at < end_at)))
);

-- name: sequence_wheelbeat_monitor_id_seq
ALTER TABLE {schema}.wheelbeat_monitor ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME {schema}.wheelbeat_monitor_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- name: table_wheelbeat_origin
CREATE TABLE {schema}.wheelbeat_origin (
    monitor_id bigint NOT NULL,
    source character varying(200) NOT NULL,
    name character varying(200) NOT NULL
);

-- name: table_wheelbeat_quarantine
CREATE TABLE {schema}.wheelbeat_quarantine (
    job_key character varying(250) NOT NULL,
    definition_hash character varying(64) NOT NULL,
    reason text NOT NULL,
    since timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);

-- name: constraint_wheelbeat_audit_wheelbeat_audit_pkey
ALTER TABLE ONLY {schema}.wheelbeat_audit
    ADD CONSTRAINT wheelbeat_audit_pkey PRIMARY KEY (id);

-- name: constraint_wheelbeat_beat_wheelbeat_beat_pkey
ALTER TABLE ONLY {schema}.wheelbeat_beat
    ADD CONSTRAINT wheelbeat_beat_pkey PRIMARY KEY (beat_id);

-- name: constraint_wheelbeat_changelog_wheelbeat_changelog_pkey
ALTER TABLE ONLY {schema}.wheelbeat_changelog
    ADD CONSTRAINT wheelbeat_changelog_pkey PRIMARY KEY (id);

-- name: constraint_wheelbeat_claim_wheelbeat_claim_pkey
ALTER TABLE ONLY {schema}.wheelbeat_claim
    ADD CONSTRAINT wheelbeat_claim_pkey PRIMARY KEY (id);

-- name: constraint_wheelbeat_installation_wheelbeat_installation_pkey
ALTER TABLE ONLY {schema}.wheelbeat_installation
    ADD CONSTRAINT wheelbeat_installation_pkey PRIMARY KEY (id);

-- name: constraint_wheelbeat_lease_wheelbeat_lease_pkey
ALTER TABLE ONLY {schema}.wheelbeat_lease
    ADD CONSTRAINT wheelbeat_lease_pkey PRIMARY KEY (id);

-- name: constraint_wheelbeat_monitor_wheelbeat_monitor_name_key
ALTER TABLE ONLY {schema}.wheelbeat_monitor
    ADD CONSTRAINT wheelbeat_monitor_name_key UNIQUE (name);

-- name: constraint_wheelbeat_monitor_wheelbeat_monitor_pkey
ALTER TABLE ONLY {schema}.wheelbeat_monitor
    ADD CONSTRAINT wheelbeat_monitor_pkey PRIMARY KEY (id);

-- name: constraint_wheelbeat_origin_wheelbeat_origin_pkey
ALTER TABLE ONLY {schema}.wheelbeat_origin
    ADD CONSTRAINT wheelbeat_origin_pkey PRIMARY KEY (monitor_id);

-- name: constraint_wheelbeat_quarantine_wheelbeat_quarantine_pkey
ALTER TABLE ONLY {schema}.wheelbeat_quarantine
    ADD CONSTRAINT wheelbeat_quarantine_pkey PRIMARY KEY (job_key);

-- name: index_wheelbeat_audit_at_1571fded
CREATE INDEX wheelbeat_audit_at_1571fded ON {schema}.wheelbeat_audit USING btree (at);

-- name: index_wheelbeat_audit_by_actor
CREATE INDEX wheelbeat_audit_by_actor ON {schema}.wheelbeat_audit USING btree (actor, id DESC);

-- name: index_wheelbeat_audit_monitor_id_cca2fbc4
CREATE INDEX wheelbeat_audit_monitor_id_cca2fbc4 ON {schema}.wheelbeat_audit USING btree (monitor_id);

-- name: index_wheelbeat_beat_beat_id_e159d4d7_like
CREATE INDEX wheelbeat_beat_beat_id_e159d4d7_like ON {schema}.wheelbeat_beat USING btree (beat_id varchar_pattern_ops);

-- name: index_wheelbeat_beat_seen
CREATE INDEX wheelbeat_beat_seen ON {schema}.wheelbeat_beat USING btree (namespace, seen_at);

-- name: index_wheelbeat_changelog_monitor
CREATE INDEX wheelbeat_changelog_monitor ON {schema}.wheelbeat_changelog USING btree (monitor_id, at);

-- name: index_wheelbeat_changelog_xid
CREATE INDEX wheelbeat_changelog_xid ON {schema}.wheelbeat_changelog USING btree (xid);

-- name: index_wheelbeat_claim_expires
CREATE INDEX wheelbeat_claim_expires ON {schema}.wheelbeat_claim USING btree (expires_ms);

-- name: index_wheelbeat_claim_id_6ccefc56_like
CREATE INDEX wheelbeat_claim_id_6ccefc56_like ON {schema}.wheelbeat_claim USING btree (id varchar_pattern_ops);

-- name: index_wheelbeat_lease_id_e407bb49_like
CREATE INDEX wheelbeat_lease_id_e407bb49_like ON {schema}.wheelbeat_lease USING btree (id varchar_pattern_ops);

-- name: index_wheelbeat_monitor_by_cron
CREATE INDEX wheelbeat_monitor_by_cron ON {schema}.wheelbeat_monitor USING btree (name) WHERE ((cron)::text > ''::text);

-- name: index_wheelbeat_monitor_by_enabled
CREATE INDEX wheelbeat_monitor_by_enabled ON {schema}.wheelbeat_monitor USING btree (enabled, name);

-- name: index_wheelbeat_monitor_by_interval
CREATE INDEX wheelbeat_monitor_by_interval ON {schema}.wheelbeat_monitor USING btree (interval_ms);

-- name: index_wheelbeat_monitor_by_once
CREATE INDEX wheelbeat_monitor_by_once ON {schema}.wheelbeat_monitor USING btree (name) WHERE (once_at IS NOT NULL);

-- name: index_wheelbeat_monitor_by_queue
CREATE INDEX wheelbeat_monitor_by_queue ON {schema}.wheelbeat_monitor USING btree (queue, name);

-- name: index_wheelbeat_monitor_by_solar
CREATE INDEX wheelbeat_monitor_by_solar ON {schema}.wheelbeat_monitor USING btree (name) WHERE ((solar_event)::text > ''::text);

-- name: index_wheelbeat_monitor_by_tag
CREATE INDEX wheelbeat_monitor_by_tag ON {schema}.wheelbeat_monitor USING gin (string_to_array((tags)::text, ','::text));

-- name: index_wheelbeat_monitor_by_task
CREATE INDEX wheelbeat_monitor_by_task ON {schema}.wheelbeat_monitor USING btree (task, name);

-- name: index_wheelbeat_monitor_incident_end
CREATE INDEX wheelbeat_monitor_incident_end ON {schema}.wheelbeat_monitor USING btree (incident_until);

-- name: index_wheelbeat_monitor_name_2079ed73_like
CREATE INDEX wheelbeat_monitor_name_2079ed73_like ON {schema}.wheelbeat_monitor USING btree (name varchar_pattern_ops);

-- name: index_wheelbeat_origin_source_515d8212
CREATE INDEX wheelbeat_origin_source_515d8212 ON {schema}.wheelbeat_origin USING btree (source);

-- name: index_wheelbeat_origin_source_515d8212_like
CREATE INDEX wheelbeat_origin_source_515d8212_like ON {schema}.wheelbeat_origin USING btree (source varchar_pattern_ops);

-- name: index_wheelbeat_quarantine_job_key_91e42009_like
CREATE INDEX wheelbeat_quarantine_job_key_91e42009_like ON {schema}.wheelbeat_quarantine USING btree (job_key varchar_pattern_ops);

-- name: trigger_wheelbeat_monitor_wheelbeat_keep_instants
CREATE TRIGGER wheelbeat_keep_instants BEFORE UPDATE ON {schema}.wheelbeat_monitor FOR EACH ROW WHEN ((((((((((((((old.interval_ms IS DISTINCT FROM new.interval_ms) OR ((old.cron)::text IS DISTINCT FROM (new.cron)::text)) OR ((old.timezone)::text IS DISTINCT FROM (new.timezone)::text)) OR ((old.day_rule)::text IS DISTINCT FROM (new.day_rule)::text)) OR (old.once_at IS DISTINCT FROM new.once_at)) OR ((old.solar_event)::text IS DISTINCT FROM (new.solar_event)::text)) OR (old.solar_latitude IS DISTINCT FROM new.solar_latitude)) OR (old.solar_longitude IS DISTINCT FROM new.solar_longitude)) OR (old.jitter_s IS DISTINCT FROM new.jitter_s)) OR (old.start_at IS DISTINCT FROM new.start_at)) OR (old.end_at IS DISTINCT FROM new.end_at)) OR (old.one_off IS DISTINCT FROM new.one_off)) OR (new.enabled AND (NOT old.enabled)) OR (new.effective_from < old.effective_from) OR ((new.effective_from = old.effective_from) AND (new.finished_at IS NULL) AND (old.finished_at IS NOT NULL)))) EXECUTE FUNCTION {schema}.wheelbeat_keep_instants();
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_keep_instants;

-- name: trigger_wheelbeat_monitor_wheelbeat_keep_stretches
CREATE TRIGGER wheelbeat_keep_stretches BEFORE UPDATE ON {schema}.wheelbeat_monitor FOR EACH ROW WHEN ((((((((((((((old.interval_ms IS DISTINCT FROM new.interval_ms) OR ((old.cron)::text IS DISTINCT FROM (new.cron)::text)) OR ((old.timezone)::text IS DISTINCT FROM (new.timezone)::text)) OR ((old.day_rule)::text IS DISTINCT FROM (new.day_rule)::text)) OR (old.once_at IS DISTINCT FROM new.once_at)) OR ((old.solar_event)::text IS DISTINCT FROM (new.solar_event)::text)) OR (old.solar_latitude IS DISTINCT FROM new.solar_latitude)) OR (old.solar_longitude IS DISTINCT FROM new.solar_longitude)) OR (old.jitter_s IS DISTINCT FROM new.jitter_s)) OR (old.start_at IS DISTINCT FROM new.start_at)) OR (old.end_at IS DISTINCT FROM new.end_at)) OR (old.one_off IS DISTINCT FROM new.one_off)) OR (old.enabled AND (NOT new.enabled)) OR ((new.active_before)::text IS DISTINCT FROM (old.active_before)::text))) EXECUTE FUNCTION {schema}.wheelbeat_keep_stretches();
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_keep_stretches;

-- name: trigger_wheelbeat_monitor_wheelbeat_log_delete
CREATE TRIGGER wheelbeat_log_delete AFTER DELETE ON {schema}.wheelbeat_monitor REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_log_changes();
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_log_delete;

-- name: trigger_wheelbeat_monitor_wheelbeat_log_insert
CREATE TRIGGER wheelbeat_log_insert AFTER INSERT ON {schema}.wheelbeat_monitor REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_log_changes();
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_log_insert;

-- name: trigger_wheelbeat_monitor_wheelbeat_log_truncate
CREATE TRIGGER wheelbeat_log_truncate AFTER TRUNCATE ON {schema}.wheelbeat_monitor FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_log_changes();
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_log_truncate;

-- name: trigger_wheelbeat_monitor_wheelbeat_log_update
CREATE TRIGGER wheelbeat_log_update AFTER UPDATE ON {schema}.wheelbeat_monitor REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_log_changes();
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_log_update;
