-- MariaDB: row-level triggers; TRUNCATE and foreign-key cascades do not fire them (the reconcile finds those).
-- {logged} and {rearming} compare OLD and NEW byte by byte, because the collation may ignore case.

-- name: trigger_wheelbeat_log_insert
CREATE TRIGGER wheelbeat_log_insert AFTER INSERT ON wheelbeat_monitor FOR EACH ROW
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
    VALUES (NEW.id, 'I', UTC_TIMESTAMP(6), {who}, {why});
END

-- name: trigger_wheelbeat_log_update
CREATE TRIGGER wheelbeat_log_update AFTER UPDATE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    IF OLD.id <> NEW.id THEN
        INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
        VALUES (OLD.id, 'D', UTC_TIMESTAMP(6), {who}, {why}),
               (NEW.id, 'I', UTC_TIMESTAMP(6), {who}, {why});
    ELSEIF {logged} THEN
        INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
        VALUES (NEW.id, 'U', UTC_TIMESTAMP(6), {who}, {why});
    END IF;
END

-- name: trigger_wheelbeat_log_delete
CREATE TRIGGER wheelbeat_log_delete AFTER DELETE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor, reason)
    VALUES (OLD.id, 'D', UTC_TIMESTAMP(6), {who}, {why});
END

-- name: trigger_wheelbeat_keep_instants
CREATE TRIGGER wheelbeat_keep_instants BEFORE UPDATE ON wheelbeat_monitor FOR EACH ROW
BEGIN
    IF {rearming} THEN
        SET NEW.effective_from = UTC_TIMESTAMP(6),
            NEW.finished_at = CASE WHEN NEW.once_at = OLD.once_at THEN coalesce(NEW.finished_at, OLD.finished_at) END;
    ELSEIF NEW.effective_from <= OLD.effective_from THEN
        SET NEW.effective_from = OLD.effective_from, NEW.finished_at = coalesce(NEW.finished_at, OLD.finished_at);
    END IF;
END
