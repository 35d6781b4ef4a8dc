-- Maintains wheelbeat_monitor.active_before; see active_periods_postgresql.sql.

-- name: trigger_wheelbeat_keep_stretches
CREATE TRIGGER wheelbeat_keep_stretches AFTER UPDATE ON wheelbeat_monitor
WHEN {rescheduled} OR (OLD.enabled AND NOT NEW.enabled) OR NEW.active_before IS NOT OLD.active_before
BEGIN
    UPDATE wheelbeat_monitor
    SET active_before = CASE
        WHEN {rescheduled} THEN ''
        WHEN OLD.enabled AND NOT NEW.enabled THEN substr(OLD.active_before || {period}, -{kept})
        ELSE OLD.active_before
    END
    WHERE id = NEW.id;
END
