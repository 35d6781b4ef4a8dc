-- Maintains wheelbeat_monitor.active_before: the periods in which a monitor was enabled with its current schedule.
-- Pausing appends one, a change of the schedule clears it, and other writes to it are reverted. {period} is the text
-- of one period; {rescheduled} compares OLD and NEW.

-- name: function_wheelbeat_keep_stretches
CREATE OR REPLACE FUNCTION {schema}.wheelbeat_keep_stretches() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    NEW.active_before := CASE
        WHEN {rescheduled} THEN ''
        WHEN OLD.enabled AND NOT NEW.enabled THEN right(OLD.active_before || {period}, {kept})
        ELSE OLD.active_before
    END;
    RETURN NEW;
END
$body$

-- name: trigger_wheelbeat_keep_stretches
CREATE OR REPLACE TRIGGER wheelbeat_keep_stretches BEFORE UPDATE ON {schema}.wheelbeat_monitor FOR EACH ROW
WHEN (
    {rescheduled} OR (OLD.enabled AND NOT NEW.enabled) OR NEW.active_before IS DISTINCT FROM OLD.active_before
)
EXECUTE FUNCTION {schema}.wheelbeat_keep_stretches()

-- name: always_keep_stretches
ALTER TABLE {schema}.wheelbeat_monitor ENABLE ALWAYS TRIGGER wheelbeat_keep_stretches
