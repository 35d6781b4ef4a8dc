-- One log row per changed monitor, one INSERT per statement (called by statement_triggers_postgresql.sql). {schema} is
-- the schema of the tables; {logged} compares rows o and n, {rearming} OLD and NEW; {who} and {why}: see actors.py.
-- Trigger functions run with the rights of their owner, so a role needs only the right to edit monitors. JIT is off: a
-- session keeps the plan of its largest statement and would compile it again for every single row edited later.

-- name: function_wheelbeat_log_changes
CREATE OR REPLACE FUNCTION {schema}.wheelbeat_log_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $body$
DECLARE
    who text := {who};
    why text := {why};
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
        WHERE o.id IS NULL OR n.id IS NULL OR {logged};
    ELSE
        INSERT INTO {schema}.wheelbeat_changelog (monitor_id, operation, actor, reason)
        VALUES (NULL, 'T', who, why);
    END IF;
    RETURN NULL;
END
$body$

-- name: function_wheelbeat_keep_instants
CREATE OR REPLACE FUNCTION {schema}.wheelbeat_keep_instants() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF {rearming} THEN
        NEW.effective_from := statement_timestamp();
        NEW.finished_at := CASE WHEN NEW.once_at = OLD.once_at THEN coalesce(NEW.finished_at, OLD.finished_at) END;
    ELSIF NEW.effective_from <= OLD.effective_from THEN
        NEW.effective_from := OLD.effective_from;
        NEW.finished_at := coalesce(NEW.finished_at, OLD.finished_at);
    END IF;
    RETURN NEW;
END
$body$

-- name: trigger_wheelbeat_keep_instants
CREATE OR REPLACE TRIGGER wheelbeat_keep_instants BEFORE UPDATE ON {schema}.wheelbeat_monitor FOR EACH ROW
WHEN (
    {rearming}
    OR NEW.effective_from < OLD.effective_from
    OR (NEW.effective_from = OLD.effective_from AND NEW.finished_at IS NULL AND OLD.finished_at IS NOT NULL)
)
EXECUTE FUNCTION {schema}.wheelbeat_keep_instants()

-- name: always_keep_instants
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_keep_instants
