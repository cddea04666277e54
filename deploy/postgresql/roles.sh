#!/bin/bash
# The two users of the store and its database, on a server that is new: `sendonce` owns the tables and makes them,
# `sendonce_app` is whom the processes are. Their passwords are read from files, so that they stand in no history.
# The postgres image runs this by itself (compose.yaml); elsewhere run it as an administrator of the server.
set -euo pipefail
secrets=${SECRETS:-/run/secrets}

psql --set ON_ERROR_STOP=1 --set owner="$(< "$secrets/owner-password")" --set app="$(< "$secrets/app-password")" <<'END'
CREATE ROLE sendonce LOGIN PASSWORD :'owner';
CREATE ROLE sendonce_app LOGIN PASSWORD :'app';
CREATE DATABASE reminders OWNER sendonce ENCODING 'UTF8' TEMPLATE template0;
END
