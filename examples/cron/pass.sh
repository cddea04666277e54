#!/bin/sh
# Ask for passes over HTTP until nothing that is due is left, for at most 15 minutes: for a cron that runs commands.
#
#   SENDONCE_URL=https://sendonce.example.com SENDONCE_KEY_FILE=/etc/sendonce/pass-key pass.sh [WHO]
#
# The key is one with the scope `operate`, alone in its file; SENDONCE_PASS_SECRET_FILE holds the secret to sign with,
# where `pass_secret` is set. Neither is ever an argument, which others on the machine could read.
# It ends with another code than 0 where a pass was not done; the next run goes on from there.
set -eu

body="{\"trigger\": \"${1:-cron}\"}"
end=$(($(date +%s) + 900))

headers() {
  printf 'Content-Type: application/json\nAuthorization: Bearer %s\n' "$(cat "$SENDONCE_KEY_FILE")"
  if [ -n "${SENDONCE_PASS_SECRET_FILE:-}" ]; then
    python3 - "$SENDONCE_PASS_SECRET_FILE" "$body" <<'SIGN'
import hmac, pathlib, sys, time
secret, at = pathlib.Path(sys.argv[1]).read_bytes().strip(), int(time.time())
said = hmac.new(secret, f"{at}.{sys.argv[2]}".encode(), "sha256").hexdigest()
print(f"Sendonce-Signature: t={at},v1={said}")
SIGN
  fi
}

while :; do
  answer=$(headers | curl --silent --show-error --fail --max-time 60 --header @- --data "$body" "$SENDONCE_URL/v1/passes")
  printf '%s\n' "$answer"
  case $answer in
    *'"complete":true'* | *'"paused":true'*) exit 0 ;;
  esac
  [ "$(date +%s)" -lt "$end" ] || exit 0
done
