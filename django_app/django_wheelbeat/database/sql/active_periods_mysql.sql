-- Maintains wheelbeat_monitor.active_before; see active_periods_postgresql.sql.

-- name: trigger_wheelbeat_keep_stretches
CREATE TRIGGER wheelbeat_keep_stretches BEFORE UPDATE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    SET NEW.active_before = CASE
        WHEN {rescheduled} THEN ''
        WHEN OLD.enabled AND NOT NEW.enabled THEN right(concat(OLD.active_before, {period}), {kept})
        ELSE OLD.active_before
    END;
END
