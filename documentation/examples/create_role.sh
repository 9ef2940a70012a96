#!/bin/sh
# The role of the servers: neither owner of a table nor superuser.
set -eu
psql --set=ON_ERROR_STOP=1 --set=password="$APP_PASSWORD" --username="$POSTGRES_USER" <<'SQL'
create role app login password :'password';
SQL
