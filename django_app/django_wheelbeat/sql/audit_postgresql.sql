-- The audit: for each statement one row per monitor with the columns that changed, or one row for all of them.
-- {pairs} builds column → [before, after] out of rows o and n; {counts} builds column → number of monitors.

-- name: function_wheelbeat_audit_changes
CREATE OR REPLACE FUNCTION {schema}.wheelbeat_audit_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $body$
DECLARE
    who text := left(coalesce(nullif(current_setting('wheelbeat.actor', true), ''), session_user), 150);
    why text := left(coalesce(current_setting('wheelbeat.reason', true), ''), 200);
    touched bigint;
    what text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT count(*) INTO touched FROM new_rows;
        IF {summarised} THEN
            INSERT INTO {schema}.wheelbeat_audit (operation, monitors, changes, actor, reason)
            SELECT 'I', touched, '{}', who, why WHERE touched > 0;
        ELSE
            INSERT INTO {schema}.wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
            SELECT n.id, 'I', 1, {pairs_insert}, who, why FROM new_rows n;
        END IF;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT count(*) INTO touched FROM old_rows;
        IF {summarised} THEN
            INSERT INTO {schema}.wheelbeat_audit (operation, monitors, changes, actor, reason)
            SELECT 'D', touched, '{}', who, why WHERE touched > 0;
        ELSE
            INSERT INTO {schema}.wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
            SELECT o.id, 'D', 1, {pairs_delete}, who, why FROM old_rows o;
        END IF;
    ELSIF TG_OP = 'UPDATE' THEN
        SELECT count(*) INTO touched FROM new_rows;
        IF {summarised} THEN
            SELECT count(*) FILTER (WHERE {differs}), {counts} INTO touched, what
            FROM old_rows o JOIN new_rows n ON o.id = n.id;
            INSERT INTO {schema}.wheelbeat_audit (operation, monitors, changes, actor, reason)
            SELECT 'U', touched, what, who, why WHERE touched > 0;
        ELSE
            INSERT INTO {schema}.wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
            SELECT coalesce(n.id, o.id), CASE WHEN o.id IS NULL THEN 'I' WHEN n.id IS NULL THEN 'D' ELSE 'U' END, 1,
                {pairs}, who, why
            FROM old_rows o FULL OUTER JOIN new_rows n ON o.id = n.id
            WHERE o.id IS NULL OR n.id IS NULL OR {differs};
        END IF;
    ELSE
        INSERT INTO {schema}.wheelbeat_audit (operation, monitors, changes, actor, reason) VALUES ('T', 0, '{}', who, why);
    END IF;
    RETURN NULL;
END
$body$

-- name: trigger_wheelbeat_audit_insert
CREATE OR REPLACE TRIGGER wheelbeat_audit_insert AFTER INSERT ON {schema}.wheelbeat_monitor
REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_audit_changes()

-- name: trigger_wheelbeat_audit_update
CREATE OR REPLACE TRIGGER wheelbeat_audit_update AFTER UPDATE ON {schema}.wheelbeat_monitor
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_audit_changes()

-- name: trigger_wheelbeat_audit_delete
CREATE OR REPLACE TRIGGER wheelbeat_audit_delete AFTER DELETE ON {schema}.wheelbeat_monitor
REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_audit_changes()

-- name: trigger_wheelbeat_audit_truncate
CREATE OR REPLACE TRIGGER wheelbeat_audit_truncate AFTER TRUNCATE ON {schema}.wheelbeat_monitor
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_audit_changes()

-- name: always_audit
ALTER TABLE {schema}.wheelbeat_monitor
    ENABLE ALWAYS TRIGGER wheelbeat_audit_insert,
    ENABLE ALWAYS TRIGGER wheelbeat_audit_update,
    ENABLE ALWAYS TRIGGER wheelbeat_audit_delete,
    ENABLE ALWAYS TRIGGER wheelbeat_audit_truncate
