#!/bin/sh
# Run once, by the image of PostgreSQL, in an empty data folder. The application's role owns nothing, so that row-level
# security binds it.
set -eu
psql --set ON_ERROR_STOP=1 --username postgres \
  --set owner_password="$OWNER_PASSWORD" --set app_password="$APP_PASSWORD" <<'SQL'
CREATE ROLE slipstream_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE slipstream_app LOGIN PASSWORD :'app_password';
CREATE DATABASE slipstream OWNER slipstream_owner;
SQL
