-- The audit, one row per monitor: MariaDB has no statement-level triggers. {pairs…} is the text of a JSON object.

-- name: trigger_wheelbeat_audit_insert
CREATE TRIGGER wheelbeat_audit_insert AFTER INSERT ON wheelbeat_monitor FOR EACH ROW
BEGIN
    INSERT INTO wheelbeat_audit (monitor_id, operation, monitors, changes, at, actor, reason)
    VALUES (NEW.id, 'I', 1, {pairs_insert}, UTC_TIMESTAMP(6), {who}, {why});
END

-- name: trigger_wheelbeat_audit_update
CREATE TRIGGER wheelbeat_audit_update AFTER UPDATE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    IF OLD.id <> NEW.id OR {differs} THEN
        INSERT INTO wheelbeat_audit (monitor_id, operation, monitors, changes, at, actor, reason)
        VALUES (NEW.id, 'U', 1, {pairs}, UTC_TIMESTAMP(6), {who}, {why});
    END IF;
END

-- name: trigger_wheelbeat_audit_delete
CREATE TRIGGER wheelbeat_audit_delete AFTER DELETE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    INSERT INTO wheelbeat_audit (monitor_id, operation, monitors, changes, at, actor, reason)
    VALUES (OLD.id, 'D', 1, {pairs_delete}, UTC_TIMESTAMP(6), {who}, {why});
END
