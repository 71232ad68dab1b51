#!/bin/sh
# Writes .env from .env.example with a fresh random value for every secret. It never overwrites a .env.
set -eu
cd "$(dirname "$0")/.."

if [ -e .env ]; then
    echo ".env exists: remove it first. Note that the database in the volume postgres-data keeps the password of its first start." >&2
    exit 1
fi

random_hex() { head -c "$1" /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

umask 077
while IFS= read -r line; do
    case "$line" in
        AIRFLOW_FERNET_KEY=) line="$line$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')" ;; # 32 bytes, URL-safe base64
        AIRFLOW_JWT_SECRET=) line="$line$(random_hex 64)" ;;                                   # HS512 asks for 64 bytes
        AIRFLOW_ADMIN_PASSWORD= | S3_ACCESS_KEY_ID=) line="$line$(random_hex 10)" ;;
        POSTGRES_PASSWORD= | AIRFLOW_API_SECRET_KEY= | RAY_AUTH_TOKEN= | S3_SECRET_ACCESS_KEY=) line="$line$(random_hex 32)" ;;
    esac
    printf '%s\n' "$line"
done < .env.example > .env.unfinished
mv .env.unfinished .env
echo "wrote .env; log in to Airflow as admin with the password AIRFLOW_ADMIN_PASSWORD in it"
