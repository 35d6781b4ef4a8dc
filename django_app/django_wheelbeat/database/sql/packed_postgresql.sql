-- Column packed, which beats read from large tables: all fixed-width values of a monitor in 54 bytes, or NULL if the
-- monitor has rare values, or a name or arguments that need individual checks. The format is defined in
-- celery_wheelbeat/sources/databases/packed.py. To change the type of a column used here, drop packed first.

-- name: function
-- Whether args and kwargs are JSON that can be sent: no NaN, no number beyond float8 (it would become Infinity), no half
-- of a surrogate pair. What jsonb cannot hold, such as an escaped NUL, is false too: then a beat looks more closely. It
-- also compiles long numbers by itself: jsonb drops one whose key comes again, and a worker has to read it.
CREATE OR REPLACE FUNCTION {schema}.wheelbeat_is_sendable(args text, kwargs text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT
AS $body$
BEGIN
    RETURN (args OPERATOR(pg_catalog.=) '[]' OR NOT args::pg_catalog.jsonb OPERATOR(pg_catalog.@?) '{too_large}')
        AND (kwargs OPERATOR(pg_catalog.=) '{}' OR NOT kwargs::pg_catalog.jsonb OPERATOR(pg_catalog.@?) '{too_large}');
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END
$body$

-- name: too_large
strict $.** ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308)

-- name: grant
-- The column is evaluated with the rights of the role that writes a monitor.
GRANT EXECUTE ON FUNCTION {schema}.wheelbeat_is_sendable(text, text) TO PUBLIC

-- name: add
ALTER TABLE {schema}.wheelbeat_monitor DROP COLUMN packed, ADD COLUMN packed bytea GENERATED ALWAYS AS (
    CASE WHEN {plain}
    THEN int8send(id) || substring({shape} FOR 16) || int8send(coalesce(interval_ms, 0))
         || timestamptz_send(effective_from) || int2send(octet_length(name)::smallint)
         || int2send(octet_length(args)::smallint) || int2send(octet_length(kwargs)::smallint)
         || substring({content} FOR 8)
    END) STORED

-- name: plain
once_at IS NULL AND solar_event = '' AND start_at IS NULL AND end_at IS NULL AND finished_at IS NULL
AND incident_interval_ms IS NULL AND incident_until IS NULL AND octet_length(args) + octet_length(kwargs) <= 16384
AND isfinite(effective_from) AND octet_length(name) <= 200 AND name COLLATE "C" >= '!' AND name COLLATE "C" < E'\x7f'
AND left(args, 1) = '[' AND right(args, 1) = ']' AND left(kwargs, 1) = '{' AND right(kwargs, 1) = '}'
AND strpos(args, '"__type__"') = 0 AND strpos(kwargs, '"__type__"') = 0
AND (strpos(args, E'\\u00') = 0 OR args !~ E'\\\\u00[567]') AND (strpos(kwargs, E'\\u00') = 0 OR kwargs !~ E'\\\\u00[567]')
AND (octet_length(args) < 200 OR args !~ '[0-9]{200}') AND (octet_length(kwargs) < 200 OR kwargs !~ '[0-9]{200}')
AND {schema}.wheelbeat_is_sendable(args, kwargs)

-- name: shape
-- Of what a monitor has in common with many others: lengths, numbers, texts. Nobody can make two shapes of one digest.
sha256({lengths} || {numbers} || decode(replace(
    task || cron || queue || exchange || routing_key || timezone || day_rule || misfire || overlap || headers || options,
    E'\\', E'\\\\'), 'escape'))

-- name: lengths
-- Of every text but the last one: no two rows give the same octets. None but headers has more than 16 bits count.
int8send((octet_length(task)::bigint << 48) | (octet_length(cron)::bigint << 32)
         | (octet_length(queue)::bigint << 16) | octet_length(exchange))
|| int8send((octet_length(routing_key)::bigint << 48) | (octet_length(timezone)::bigint << 32)
            | (octet_length(day_rule)::bigint << 16) | octet_length(misfire))
|| int8send((octet_length(overlap)::bigint << 48) | octet_length(headers))

-- name: numbers
int8send((coalesce(jitter_s, 0)::bigint << 32) | ((coalesce(priority, 0)::bigint & 65535) << 16)
         | ((jitter_s IS NULL)::int << 6) | ((priority IS NULL)::int << 5) | ((interval_ms IS NULL)::int << 4)
         | ((expires_s IS NULL)::int << 3) | (enabled::int << 2) | (one_off::int << 1) | expires_next::int)
|| float8send(coalesce(expires_s, 0))

-- name: content
-- Of name and arguments. decode is the one way from a text to its octets that depends on no setting of the session; it
-- wants backslashes doubled.
sha256(int8send((octet_length(name)::bigint << 32) | octet_length(args))
       || decode(replace(name || args || kwargs, E'\\', E'\\\\'), 'escape'))
