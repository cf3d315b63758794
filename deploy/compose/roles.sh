#!/bin/sh
# The PostgreSQL image runs this once, in an empty data folder. The application's role owns nothing, so that row-level
# security applies to it. psql reads the passwords from the environment, because arguments are visible to every process.
set -eu
psql --set ON_ERROR_STOP=1 --username postgres <<'SQL'
\getenv owner_password OWNER_PASSWORD
\getenv app_password APP_PASSWORD
CREATE ROLE slipstream_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE slipstream_app LOGIN PASSWORD :'app_password';
CREATE DATABASE slipstream OWNER slipstream_owner;
SQL
