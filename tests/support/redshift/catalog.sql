-- What Redshift has and PostgreSQL lacks, in pg_catalog: found whatever search_path says, as on Redshift.

GRANT ALL ON SCHEMA public TO PUBLIC;

CREATE DOMAIN pg_catalog.super AS jsonb;

CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql STABLE AS
$$ SELECT 'PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017 (Red Hat 3.4.2-6.fc3), Redshift 1.0.0 (Floodmark stand-in)'::text $$;

-- Limits -----------------------------------------------------------------------------------------------
-- Texts end at 65,535 bytes, sums at 38 digits. The planner puts the bodies in the place of such functions: they
-- cost next to nothing.
CREATE DOMAIN pg_catalog.rs_joined AS text CHECK (octet_length(value) <= 65535);
CREATE FUNCTION pg_catalog.rs_join(text, text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT textcat($1, $2)::rs_joined::text $$;
UPDATE pg_catalog.pg_operator SET oprcode = 'pg_catalog.rs_join(text, text)'::regprocedure
WHERE oid = 'pg_catalog.||(text, text)'::regoperator;
CREATE DOMAIN pg_catalog.rs_text AS text CHECK (octet_length(value) <= 65535);
ALTER FUNCTION pg_catalog.repeat(text, integer) RENAME TO rs_repeat;
CREATE FUNCTION pg_catalog.repeat(text, integer) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT rs_repeat($1, $2)::rs_text::text $$;
ALTER FUNCTION pg_catalog.replace(text, text, text) RENAME TO rs_replace;
CREATE FUNCTION pg_catalog.replace(text, text, text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT rs_replace($1, $2, $3)::rs_text::text $$;
ALTER FUNCTION pg_catalog.lpad(text, integer, text) RENAME TO rs_lpad;
CREATE FUNCTION pg_catalog.lpad(text, integer, text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT rs_lpad($1, $2, $3)::rs_text::text $$;
CREATE OR REPLACE FUNCTION pg_catalog.lpad(text, integer) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS
$$ SELECT lpad($1, $2, ' ') $$;
ALTER FUNCTION pg_catalog.rpad(text, integer, text) RENAME TO rs_rpad;
CREATE FUNCTION pg_catalog.rpad(text, integer, text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT rs_rpad($1, $2, $3)::rs_text::text $$;
CREATE OR REPLACE FUNCTION pg_catalog.rpad(text, integer) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS
$$ SELECT rpad($1, $2, ' ') $$;
ALTER FUNCTION pg_catalog.translate(text, text, text) RENAME TO rs_translate;
CREATE FUNCTION pg_catalog.translate(text, text, text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT rs_translate($1, $2, $3)::rs_text::text $$;
ALTER FUNCTION pg_catalog.regexp_replace(text, text, text) RENAME TO rs_regexp_replace;
CREATE FUNCTION pg_catalog.regexp_replace(text, text, text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT rs_regexp_replace($1, $2, $3)::rs_text::text $$;
CREATE SCHEMA rs_checked;
GRANT USAGE ON SCHEMA rs_checked TO PUBLIC;
CREATE DOMAIN pg_catalog.rs_sum AS numeric CHECK (abs(value) < power(10::numeric, 38 - scale(value)));
CREATE FUNCTION rs_checked.sum(numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$ SELECT $1::rs_sum::numeric $$;
CREATE FUNCTION rs_checked.sum(bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT $1 $$;
CREATE FUNCTION rs_checked.sum(real) RETURNS real LANGUAGE sql IMMUTABLE AS $$ SELECT $1 $$;
CREATE FUNCTION rs_checked.sum(double precision) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$ SELECT $1 $$;
CREATE FUNCTION rs_checked.sum(interval) RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT $1 $$;
-- Two arguments, and NULL if one of them is.
ALTER FUNCTION pg_catalog.concat(VARIADIC "any") RENAME TO rs_no_concat;
CREATE FUNCTION pg_catalog.concat(text, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT rs_join($1, $2) $$;
CREATE FUNCTION pg_catalog.concat(bytea, bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$ SELECT byteacat($1, $2) $$;
ALTER FUNCTION pg_catalog.md5(bytea) RENAME TO rs_no_md5;

-- Time -------------------------------------------------------------------------------------------------
CREATE FUNCTION pg_catalog.getdate() RETURNS timestamp LANGUAGE sql STABLE AS
$$ SELECT date_trunc('second', statement_timestamp() AT TIME ZONE 'UTC') $$;
CREATE FUNCTION pg_catalog.rs_sysdate() RETURNS timestamp LANGUAGE sql STABLE AS
$$ SELECT transaction_timestamp() AT TIME ZONE 'UTC' $$;
CREATE FUNCTION pg_catalog.convert_timezone(source text, target text, moment timestamp) RETURNS timestamp
LANGUAGE sql STABLE AS $$ SELECT moment AT TIME ZONE source AT TIME ZONE target $$;
CREATE FUNCTION pg_catalog.convert_timezone(target text, moment timestamp) RETURNS timestamp
LANGUAGE sql STABLE AS $$ SELECT moment AT TIME ZONE 'UTC' AT TIME ZONE target $$;
CREATE FUNCTION pg_catalog.dateadd(part text, amount bigint, moment timestamp) RETURNS timestamp
LANGUAGE sql STABLE AS $$ SELECT moment + (amount || ' ' || part)::interval $$;

-- Text and bytes ---------------------------------------------------------------------------------------
CREATE FUNCTION pg_catalog.len(value text) RETURNS integer LANGUAGE sql IMMUTABLE AS
$$ SELECT length(value) $$;
CREATE FUNCTION pg_catalog.to_varbyte(value text, format text) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE lower(format) WHEN 'hex' THEN decode(value, 'hex') WHEN 'base64' THEN decode(value, 'base64')
                             ELSE convert_to(value, 'UTF8') END $$;
CREATE FUNCTION pg_catalog.from_varbyte(value bytea, format text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE lower(format) WHEN 'hex' THEN encode(value, 'hex') WHEN 'base64' THEN encode(value, 'base64')
                             ELSE convert_from(value, 'UTF8') END::rs_text::text $$;
CREATE FUNCTION pg_catalog.from_hex(value text) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT decode(value, 'hex') $$;
CREATE FUNCTION pg_catalog.to_hex(value bytea) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT encode(value, 'hex')::rs_text::text $$;
CREATE FUNCTION pg_catalog.len(value bytea) RETURNS integer LANGUAGE sql IMMUTABLE AS
$$ SELECT octet_length(value) $$;
-- Of text only, as documented: VARBYTE finds no such function. Bits that there are not give an empty text.
CREATE FUNCTION pg_catalog.sha2(value text, bits integer) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN value IS NULL OR bits IS NULL THEN NULL
               WHEN bits IN (0, 256) THEN encode(sha256(convert_to(value, 'UTF8')), 'hex')
               WHEN bits = 224 THEN encode(sha224(convert_to(value, 'UTF8')), 'hex')
               WHEN bits = 384 THEN encode(sha384(convert_to(value, 'UTF8')), 'hex')
               WHEN bits = 512 THEN encode(sha512(convert_to(value, 'UTF8')), 'hex') ELSE '' END $$;
CREATE FUNCTION pg_catalog.rs_strtol(value text, base integer) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  sign text := substring(ltrim(value) from '^[+-]');
  digits text := ltrim(lower(ltrim(value)), '+-');
  total numeric := 0;
  digit integer;
BEGIN
  IF base = 16 AND left(digits, 2) = '0x' THEN
    digits := substr(digits, 3);
  END IF;
  FOR at IN 1 .. length(digits) LOOP
    digit := strpos('0123456789abcdefghijklmnopqrstuvwxyz', substr(digits, at, 1)) - 1;
    IF digit < 0 OR digit >= base THEN
      RAISE EXCEPTION 'The input % is not valid to be converted to base %', value, base USING ERRCODE = '22023';
    END IF;
    total := total * base + digit;
  END LOOP;
  RETURN CASE WHEN sign = '-' THEN -total ELSE total END;
END $$;
CREATE FUNCTION pg_catalog.strtol(value text, base integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN base = 16 AND value ~ '^[0-9a-f]{15}$' THEN ('x' || value)::bit(60)::bigint
            ELSE rs_strtol(value, base) END $$;
-- A point is its well-known binary: byte order, type, and two numbers with their lowest byte first.
CREATE FUNCTION pg_catalog.rs_reversed(value bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
SELECT substring(value, 8, 1) || substring(value, 7, 1) || substring(value, 6, 1) || substring(value, 5, 1)
  || substring(value, 4, 1) || substring(value, 3, 1) || substring(value, 2, 1) || substring(value, 1, 1) $$;
CREATE FUNCTION pg_catalog.st_point(x double precision, y double precision) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT decode('0101000000', 'hex') || rs_reversed(float8send(x)) || rs_reversed(float8send(y)) $$;
CREATE FUNCTION pg_catalog.st_ashexwkb(value bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS
$$ SELECT upper(encode(value, 'hex')) $$;

-- SUPER ------------------------------------------------------------------------------------------------
-- The parameter group's enable_large_strings_opt_in: here a setting of a user, ALTER ROLE … SET floodmark.large_strings TO 'on'.
CREATE FUNCTION pg_catalog.is_large_string_enabled() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT coalesce(current_setting('floodmark.large_strings', true), 'off') = 'on' $$;
CREATE FUNCTION pg_catalog.rs_longest_string() RETURNS integer LANGUAGE sql STABLE AS
$$ SELECT CASE WHEN pg_catalog.is_large_string_enabled() THEN 16000000 ELSE 65535 END $$;
CREATE FUNCTION pg_catalog.json_parse(value text) RETURNS jsonb LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
  IF octet_length(value) > pg_catalog.rs_longest_string() THEN
    RAISE EXCEPTION USING ERRCODE = '22001', MESSAGE = 'Value too long for character type';
  END IF;
  RETURN value::jsonb;
EXCEPTION WHEN invalid_text_representation OR untranslatable_character THEN
  RAISE EXCEPTION USING ERRCODE = 'XX000', MESSAGE = 'JSON parsing error',
    DETAIL = E'\n  -----------------------------------------------\n  error:  JSON parsing error\n  code:      8001\n  context:   invalid json object '
             || left(value, 100) || E'\n  -----------------------------------------------\n';
END $$;
CREATE FUNCTION pg_catalog.rs_super_text(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS
$$ SELECT CASE jsonb_typeof(value) WHEN 'string' THEN value #>> '{}' WHEN 'null' THEN NULL
                                   WHEN 'object' THEN NULL WHEN 'array' THEN NULL
                                   ELSE value #>> '{}' END $$;
CREATE FUNCTION pg_catalog.json_parse(value jsonb) RETURNS jsonb LANGUAGE sql STABLE STRICT AS
$$ SELECT CASE jsonb_typeof(value) WHEN 'string' THEN pg_catalog.json_parse(value #>> '{}') ELSE value END $$;
CREATE FUNCTION pg_catalog.rs_serialize(value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  IF jsonb_typeof(value) = 'object' THEN
    RETURN rs_no_concat('{', (SELECT string_agg(rs_no_concat(to_json(e.key)::text, ':', rs_serialize(e.value)), ',')
                              FROM jsonb_each(value) e), '}');
  ELSIF jsonb_typeof(value) = 'array' THEN
    RETURN rs_no_concat('[', (SELECT string_agg(rs_serialize(e.value), ',' ORDER BY e.ordinality)
                              FROM jsonb_array_elements(value) WITH ORDINALITY e), ']');
  END IF;
  RETURN textin(jsonb_out(value));
END $$;
CREATE FUNCTION pg_catalog.json_serialize(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT pg_catalog.rs_serialize(value)::rs_text::text $$;
CREATE FUNCTION pg_catalog.json_typeof(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS
$$ SELECT jsonb_typeof(value) $$;
CREATE FUNCTION pg_catalog.json_size(value jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS
$$ SELECT octet_length(pg_catalog.rs_serialize(value))::bigint $$;
CREATE FUNCTION pg_catalog.is_valid_json(value text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN jsonb_typeof(value::jsonb) = 'object';
EXCEPTION WHEN OTHERS THEN
  RETURN false;
END $$;
CREATE FUNCTION pg_catalog.can_json_parse(value text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  PERFORM value::jsonb;
  RETURN true;
EXCEPTION WHEN OTHERS THEN
  RETURN false;
END $$;
-- A SUPER string becomes that string; objects and arrays become NULL, as on Redshift, and so does a string that
-- is too long for a cast, without an error (cast_super_null_on_error): here floodmark.longest_cast, a setting of a user.
CREATE CAST (jsonb AS text) WITH FUNCTION pg_catalog.rs_super_text(jsonb);
CREATE FUNCTION pg_catalog.rs_super_varchar(value jsonb, size integer, explicit boolean) RETURNS varchar
LANGUAGE sql STABLE STRICT AS $$
  SELECT CASE WHEN octet_length(text) <= coalesce(current_setting('floodmark.longest_cast', true), '16000000')::integer
              THEN text END FROM (SELECT pg_catalog.rs_super_text(value)::varchar AS text) AS cast_to $$;
CREATE CAST (jsonb AS varchar) WITH FUNCTION pg_catalog.rs_super_varchar(jsonb, integer, boolean);

-- This session's COPY ----------------------------------------------------------------------------------
CREATE FUNCTION pg_catalog.pg_last_copy_count() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT coalesce(nullif(current_setting('floodmark.copy_count', true), ''), '0')::bigint $$;
CREATE FUNCTION pg_catalog.pg_last_copy_id() RETURNS integer LANGUAGE sql VOLATILE AS
$$ SELECT coalesce(nullif(current_setting('floodmark.copy_id', true), ''), '-1')::integer $$;

-- Names of more than 63 bytes, which PostgreSQL would cut ----------------------------------------------
-- A file for each, below the data: a row would be invisible to whoever has an older snapshot.
CREATE FUNCTION pg_catalog.rs_name(short name) RETURNS varchar LANGUAGE sql STABLE SECURITY DEFINER AS $$
  SELECT CASE WHEN $1 LIKE '%~________________'
              THEN coalesce(pg_read_file('rs_names/' || right($1, 16), 0, 1000, true)::varchar, $1::varchar)
              ELSE $1::varchar END $$;
-- Keys are marks: constraints that check nothing.
CREATE FUNCTION pg_catalog.rs_marked(relation oid, attribute smallint, mark text) RETURNS boolean
LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_constraint
                 WHERE conrelid = $1 AND $2 = ANY (conkey) AND conname LIKE 'rs!_' || $3 || '!_%' ESCAPE '!') $$;
CREATE VIEW pg_catalog.rs_pg_class AS
  SELECT oid, pg_catalog.rs_name(relname) AS relname, relnamespace, reltype, relowner, relkind, reltuples, relnatts,
         relacl FROM pg_catalog.pg_class;
CREATE VIEW pg_catalog.rs_pg_attribute AS
  SELECT attrelid, pg_catalog.rs_name(attname) AS attname, atttypid, atttypmod, attlen, attnum, attnotnull, atthasdef,
         attisdropped, pg_catalog.rs_marked(attrelid, attnum, 'distkey') AS attisdistkey,
         pg_catalog.rs_marked(attrelid, attnum, 'sortkey')::integer AS attsortkeyord FROM pg_catalog.pg_attribute;
GRANT SELECT ON pg_catalog.rs_pg_class, pg_catalog.rs_pg_attribute TO PUBLIC;

-- Whoever has SYSLOG ACCESS UNRESTRICTED is a member of this role, as superusers are of every role -----
CREATE ROLE rs_syslog;
CREATE FUNCTION pg_catalog.rs_sees(owner text) RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT $1 = current_user OR pg_has_role(current_user, 'rs_syslog', 'MEMBER') $$;
CREATE FUNCTION pg_catalog.rs_userid(owner text) RETURNS integer LANGUAGE sql STABLE AS
$$ SELECT usesysid::integer FROM pg_catalog.pg_user WHERE usename = $1 $$;

CREATE VIEW pg_catalog.svv_user_info AS
  SELECT usename::varchar AS user_name, usesysid::integer AS user_id, usecreatedb AS createdb, usesuper AS superuser,
         false AS catalog_update, 'UNLIMITED'::varchar AS connection_limit,
         (CASE WHEN pg_has_role(usename, 'rs_syslog', 'MEMBER') THEN 'UNRESTRICTED' ELSE 'RESTRICTED' END)::varchar
           AS syslog_access, NULL::timestamp AS last_ddl_timestamp, 0 AS session_timeout, NULL::varchar AS external_user_id
  FROM pg_catalog.pg_user
  WHERE usename = current_user OR (SELECT me.usesuper FROM pg_catalog.pg_user me WHERE me.usename = current_user);
GRANT SELECT ON pg_catalog.svv_user_info TO PUBLIC;

-- ASSUMEROLE: everybody may use every role for everything, until a superuser takes that back ----------
CREATE TABLE pg_catalog.rs_assumerole (grantee text, role text, command text);
INSERT INTO pg_catalog.rs_assumerole VALUES ('public', 'all', 'all');
CREATE FUNCTION pg_catalog.has_assumerole_privilege(grantee text, role text, command text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER AS $$
  SELECT (SELECT usesuper FROM pg_catalog.pg_user WHERE usename = $1)
         OR EXISTS (SELECT 1 FROM pg_catalog.rs_assumerole r
                    WHERE r.grantee IN ($1, 'public') AND r.role IN ($2, 'all') AND r.command IN (lower($3), 'all')) $$;
CREATE FUNCTION pg_catalog.has_assumerole_privilege(role text, command text) RETURNS boolean
LANGUAGE sql STABLE AS $$ SELECT has_assumerole_privilege(current_user::text, $1, $2) $$;
CREATE FUNCTION pg_catalog.default_iam_role() RETURNS text LANGUAGE sql STABLE AS
$$ SELECT 'arn:aws:iam::123456789012:role/floodmark-stand-in'::text $$;
CREATE VIEW pg_catalog.svv_iam_privileges AS
  SELECT r.role::varchar AS iam_arn, upper(r.command)::varchar AS command_type, coalesce(rs_userid(r.grantee), 0) AS identity_id,
         r.grantee::varchar AS identity_name,
         (CASE r.grantee WHEN 'public' THEN 'public' ELSE 'user' END)::varchar AS identity_type
  FROM pg_catalog.rs_assumerole r
  WHERE r.grantee IN (current_user, 'public')
     OR (SELECT me.usesuper FROM pg_catalog.pg_user me WHERE me.usename = current_user);
GRANT SELECT ON pg_catalog.svv_iam_privileges TO PUBLIC;

-- What loads leave behind, whether they were committed or not -----------------------------------------
CREATE TABLE pg_catalog.rs_load_errors (
  user_name text, slice integer, tbl integer, starttime timestamp, session integer, query integer,
  filename char(256), line_number bigint, colname char(127), type char(10), col_length char(10),
  "position" integer, raw_line char(1024), raw_field_value char(1024), err_code integer, err_reason char(100));
CREATE TABLE pg_catalog.rs_loads (
  user_name text, query_id bigint, transaction_id bigint, session_id integer, database_name text, status text,
  table_name text, start_time timestamp, end_time timestamp, duration bigint, data_source text, file_format text,
  loaded_rows bigint, loaded_bytes bigint, source_file_count integer, source_file_bytes bigint,
  file_count_scanned integer, file_bytes_scanned bigint, error_count bigint, copy_job_id bigint);
CREATE TABLE pg_catalog.rs_load_commits (
  user_name text, query integer, slice integer, name char(256), filename char(256), byte_offset integer,
  lines_scanned integer, errors integer, curtime timestamp, status integer, file_format char(16),
  is_partial integer, start_offset bigint, copy_job_id bigint);
CREATE FUNCTION pg_catalog.rs_queries() RETURNS TABLE (
  user_name text, query_id bigint, query_label text, session_id integer, database_name text, query_type text,
  status text, start_time timestamp, end_time timestamp, error_message text, query_text text)
LANGUAGE sql SECURITY DEFINER AS $$
  SELECT q.* FROM jsonb_to_recordset(coalesce(pg_read_file('rs_history.json', 0, 1000000000, true), '[]')::jsonb) AS q (
    user_name text, query_id bigint, query_label text, session_id integer, database_name text, query_type text,
    status text, start_time timestamp, end_time timestamp, error_message text, query_text text)
  WHERE q.database_name = current_database() $$;
CREATE VIEW pg_catalog.sys_query_history AS
  SELECT pg_catalog.rs_userid(q.user_name) AS user_id, q.query_id, q.query_label::char(320) AS query_label,
         NULL::bigint AS transaction_id, q.session_id, q.database_name::char(128) AS database_name,
         q.query_type::char(32) AS query_type, q.status::char(10) AS status, false AS result_cache_hit, q.start_time,
         q.end_time, extract(epoch FROM q.end_time - q.start_time)::bigint * 1000000 AS elapsed_time,
         q.error_message::char(512) AS error_message, q.query_text::char(4000) AS query_text
  FROM pg_catalog.rs_queries() q WHERE pg_catalog.rs_sees(q.user_name);
GRANT SELECT ON pg_catalog.sys_query_history TO PUBLIC;
CREATE VIEW pg_catalog.stl_load_errors AS
  SELECT pg_catalog.rs_userid(user_name) AS userid, slice, tbl, starttime, session, query, filename, line_number, colname,
         type, col_length, "position", raw_line, raw_field_value, err_code, err_reason
  FROM pg_catalog.rs_load_errors WHERE pg_catalog.rs_sees(user_name);
CREATE VIEW pg_catalog.stl_load_commits AS
  SELECT pg_catalog.rs_userid(user_name) AS userid, query, slice, name, filename, byte_offset, lines_scanned, errors,
         curtime, status, file_format, is_partial, start_offset, copy_job_id
  FROM pg_catalog.rs_load_commits WHERE pg_catalog.rs_sees(user_name);
CREATE VIEW pg_catalog.sys_load_history AS
  SELECT pg_catalog.rs_userid(user_name) AS user_id, query_id, transaction_id, session_id, database_name, status,
         table_name, start_time, end_time, duration, data_source, file_format, loaded_rows, loaded_bytes,
         source_file_count, source_file_bytes, file_count_scanned, file_bytes_scanned, error_count, copy_job_id
  FROM pg_catalog.rs_loads WHERE pg_catalog.rs_sees(user_name);
CREATE VIEW pg_catalog.sys_load_detail AS
  SELECT userid AS user_id, query::bigint AS query_id, filename AS file_name, lines_scanned::bigint AS lines_scanned,
         curtime AS record_time, curtime AS start_time, curtime AS end_time
  FROM pg_catalog.stl_load_commits;
CREATE VIEW pg_catalog.sys_load_error_detail AS
  SELECT userid AS user_id, query::bigint AS query_id, NULL::bigint AS transaction_id, session AS session_id,
         current_database()::char(64) AS database_name, tbl AS table_id, starttime AS start_time,
         filename AS file_name, line_number, colname AS column_name, type AS column_type,
         col_length AS column_length, "position", err_code AS error_code, err_reason::char(512) AS error_message
  FROM pg_catalog.stl_load_errors;
GRANT SELECT ON pg_catalog.stl_load_errors, pg_catalog.sys_load_history, pg_catalog.sys_load_detail,
  pg_catalog.stl_load_commits, pg_catalog.sys_load_error_detail TO PUBLIC;

-- Sessions and locks ----------------------------------------------------------------------------------
-- PostgreSQL's own views would show everybody's.
REVOKE SELECT ON pg_catalog.pg_locks, pg_catalog.pg_stat_activity FROM PUBLIC;
CREATE FUNCTION pg_catalog.rs_transactions() RETURNS TABLE (
  txn_owner text, txn_db text, xid bigint, pid integer, txn_start timestamp, lock_mode text,
  lockable_object_type text, relation integer, granted boolean)
LANGUAGE sql SECURITY DEFINER AS $$
  SELECT a.usename::text, a.datname::text,
         coalesce(a.backend_xid::text::bigint, a.backend_xmin::text::bigint, 0), a.pid,
         a.xact_start AT TIME ZONE 'UTC', l.mode, l.locktype, l.relation::integer, l.granted
  FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  WHERE l.locktype IN ('relation', 'transactionid') AND a.xact_start IS NOT NULL
    AND a.backend_type = 'client backend'
    AND (l.relation IS NULL OR l.relation >= 16384) $$;
CREATE VIEW pg_catalog.svv_transactions AS
  SELECT * FROM pg_catalog.rs_transactions() t WHERE pg_catalog.rs_sees(t.txn_owner);
CREATE FUNCTION pg_catalog.rs_sessions() RETURNS TABLE (
  starttime timestamp, process integer, user_name char(50), db_name char(50), timeout_sec integer)
LANGUAGE sql SECURITY DEFINER AS $$
  SELECT backend_start AT TIME ZONE 'UTC', pid, usename::char(50), datname::char(50), 0
  FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend' AND usename <> 'rdsdb' $$;
CREATE VIEW pg_catalog.stv_sessions AS
  SELECT * FROM pg_catalog.rs_sessions() s WHERE pg_catalog.rs_sees(trim(s.user_name::text));
CREATE VIEW pg_catalog.stv_db_isolation_level AS
  SELECT current_database()::char(128) AS db_name,
         (CASE current_setting('default_transaction_isolation') WHEN 'serializable' THEN 'Serializable'
                                                               ELSE 'Snapshot Isolation' END)::char(20) AS isolation_level;
CREATE VIEW pg_catalog.svv_redshift_databases AS
  SELECT trim(db_name)::varchar(128) AS database_name, 1 AS database_owner, 'local'::varchar(32) AS database_type,
         NULL::varchar(128) AS database_acl, NULL::varchar(128) AS database_options,
         trim(isolation_level)::varchar(128) AS database_isolation_level
  FROM pg_catalog.stv_db_isolation_level;
GRANT SELECT ON pg_catalog.svv_transactions, pg_catalog.stv_sessions, pg_catalog.stv_db_isolation_level,
  pg_catalog.svv_redshift_databases TO PUBLIC;

-- Tables and columns -----------------------------------------------------------------------------------
-- The type of a column as Redshift words it; the stand-in's own domains are named after what they stand for.
CREATE FUNCTION pg_catalog.rs_type(oid, integer) RETURNS text LANGUAGE sql STABLE AS $$
  -- By format_type, which looks past the transaction's snapshot: a domain may be newer than that.
  SELECT CASE WHEN t.word ~ '^rs_varchar_' THEN 'character varying(' || substr(t.word, 12) || ')'
              WHEN t.word ~ '^rs_char_' THEN 'character(' || substr(t.word, 9) || ')'
              WHEN t.word ~ '^rs_varbyte_' THEN 'binary varying(' || substr(t.word, 12) || ')'
              WHEN t.word ~ '^rs_decimal_' THEN 'numeric(19,' || substr(t.word, 15) || ')'
              ELSE t.word END
  FROM (SELECT pg_catalog.format_type($1, $2) AS word) t $$;
-- What the user may access, at least one of its columns.
CREATE FUNCTION pg_catalog.rs_accessible(relation oid) RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT has_table_privilege($1, 'SELECT, INSERT, UPDATE, DELETE, REFERENCES')
          OR has_any_column_privilege($1, 'SELECT, INSERT, UPDATE') $$;
CREATE VIEW pg_catalog.svv_columns AS
  SELECT current_database()::varchar AS table_catalog, n.nspname::varchar AS table_schema,
         pg_catalog.rs_name(c.relname) AS table_name, pg_catalog.rs_name(a.attname) AS column_name,
         (SELECT count(*) FROM pg_catalog.pg_attribute b WHERE b.attrelid = a.attrelid AND b.attnum > 0
            AND b.attnum <= a.attnum AND NOT b.attisdropped)::integer AS ordinal_position,
         pg_get_expr(d.adbin, d.adrelid)::varchar AS column_default,
         (CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END)::varchar AS is_nullable,
         regexp_replace(w.words, '\(.*\)', '')::varchar AS data_type,
         (CASE WHEN w.words ~ '^(character|binary)' THEN substring(w.words from '\((\d+)\)') END)::integer
           AS character_maximum_length,
         (CASE w.words WHEN 'smallint' THEN 16 WHEN 'integer' THEN 32 WHEN 'bigint' THEN 64
               ELSE substring(w.words from '^numeric\((\d+),')::integer END)::integer AS numeric_precision,
         (CASE WHEN w.words IN ('smallint', 'integer', 'bigint') THEN 0
               ELSE substring(w.words from '^numeric\(\d+,(\d+)\)')::integer END)::integer AS numeric_scale,
         (CASE WHEN w.words ~ '^timestamp' THEN 6 END)::integer AS datetime_precision,
         NULL::varchar AS remarks
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'v')
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  CROSS JOIN LATERAL (SELECT pg_catalog.rs_type(a.atttypid, a.atttypmod) AS words) w
  WHERE a.attnum > 0 AND NOT a.attisdropped AND n.nspname NOT IN ('information_schema', 'pg_toast')
    AND pg_catalog.rs_accessible(c.oid);
CREATE VIEW pg_catalog.svv_tables AS
  SELECT current_database()::varchar AS table_catalog, n.nspname::varchar AS table_schema,
         pg_catalog.rs_name(c.relname) AS table_name,
         (CASE WHEN c.relkind = 'v' THEN 'VIEW' WHEN n.nspname LIKE 'pg_temp%' THEN 'LOCAL TEMPORARY'
               ELSE 'BASE TABLE' END)::varchar AS table_type, NULL::varchar AS remarks
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'v') AND n.nspname NOT IN ('information_schema', 'pg_toast')
    AND pg_catalog.rs_accessible(c.oid);
-- Only schemas of search_path, as on Redshift.
CREATE VIEW pg_catalog.pg_table_def AS
  SELECT n.nspname AS schemaname, pg_catalog.rs_name(c.relname) AS tablename,
         pg_catalog.rs_name(a.attname) AS "column",
         pg_catalog.rs_type(a.atttypid, a.atttypmod)::varchar AS type, 'none'::varchar AS encoding,
         pg_catalog.rs_marked(c.oid, a.attnum, 'distkey') AS distkey,
         (pg_catalog.rs_marked(c.oid, a.attnum, 'sortkey'))::integer AS sortkey, a.attnotnull AS "notnull"
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE a.attnum > 0 AND NOT a.attisdropped AND pg_catalog.pg_table_is_visible(c.oid)
    AND n.nspname <> 'pg_catalog';
GRANT SELECT ON pg_catalog.svv_columns, pg_catalog.svv_tables, pg_catalog.pg_table_def TO PUBLIC;
-- For superusers, and for whom SELECT on it is granted to; without tables that are empty.
CREATE VIEW pg_catalog.svv_table_info AS
  SELECT current_database()::text AS database, n.nspname::text AS schema, c.oid AS table_id,
         pg_catalog.rs_name(c.relname)::text AS "table", 'N'::text AS encoded, 'AUTO(ALL)'::text AS diststyle,
         'AUTO(SORTKEY)'::text AS sortkey1, NULL::integer AS max_varchar, NULL::char(32) AS sortkey1_enc, 0 AS sortkey_num,
         ceil(pg_relation_size(c.oid) / 1048576.0)::bigint AS size, NULL::numeric(10,4) AS pct_used, 0::bigint AS empty,
         NULL::numeric(5,2) AS unsorted, 0::numeric(5,2) AS stats_off, pg_stat_get_live_tuples(c.oid)::numeric AS tbl_rows,
         NULL::numeric(19,2) AS skew_sortkey1, NULL::numeric(19,2) AS skew_rows,
         pg_stat_get_live_tuples(c.oid)::numeric AS estimated_visible_rows
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind = 'r' AND pg_relation_size(c.oid) > 0 AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast');
