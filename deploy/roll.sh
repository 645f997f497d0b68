#!/bin/sh
# Replaces all containers of a service of compose.yaml by new ones, without a lost call:
#   docker compose build frontend && deploy/roll.sh frontend
# The new ones start beside the old ones; when they are healthy, the old ones drain, one after the other. For the time
# there are twice as many. Profiles and variables as for `docker compose up`: COMPOSE_PROFILES=cpu.
set -eu
service=$1
docker=${DOCKER:-docker}
compose=${COMPOSE:-docker compose}

old=$($compose ps -q "$service")
count=$(echo "$old" | wc -w)
[ "$count" -gt 0 ] || { echo "$service: nothing runs" >&2; exit 1; }

$compose up -d --no-deps --no-recreate --scale "$service=$((count * 2))" "$service"
new=$($compose ps -q "$service" | grep -vxF "$old")
for container in $new; do
  until
    health=$($docker inspect --format '{{.State.Health.Status}}' "$container")
    [ "$health" = healthy ]
  do
    [ "$health" != unhealthy ] || { echo "$container is unhealthy; the old ones go on" >&2; exit 1; }
    sleep 1
  done
done
sleep 5 # the proxy, or the frontends where it is a worker, ask for names every second or two
for container in $old; do
  $docker stop --time 45 "$container"
  $docker rm "$container"
done
$compose up -d --no-deps --no-recreate --scale "$service=$count" "$service"
