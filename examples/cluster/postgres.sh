#!/usr/bin/env bash
# PostgreSQL as the storage of `binep tune --trials`, from Debian's packages; run as root.
#
#   apt-get install postgresql
#   pip install 'binep[tune]' psycopg2-binary
#   bash examples/cluster/postgres.sh
#
# Two processes, as if on two machines, search in one study of one database.
set -euo pipefail
work=$(mktemp -d)
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as() { setpriv --reuid=postgres --regid=postgres --clear-groups env HOME="$work" "$@"; }
finish() {
    as "$bin/pg_ctl" -D "$work/data" -m fast stop > /dev/null 2>&1 || true
    rm -rf "$work"
}
trap finish EXIT

# --- a database of its own, on a port of its own
chown postgres "$work"
port=54329
as "$bin/initdb" -D "$work/data" --auth=trust > /dev/null
as "$bin/pg_ctl" -D "$work/data" -l "$work/log" -w -o "-p $port -k $work" start > /dev/null
as "$bin/createdb" -h "$work" -p "$port" search
url="postgresql+psycopg2://postgres@127.0.0.1:$port/search"

# --- two searches
command=(python -m binep tune digits-1fc-w --trials 6 --epochs 2 --batches 30
    --storage "$url" --device cpu)
echo "$ binep tune digits-1fc-w --trials 6 --epochs 2 --batches 30 --storage $url    # twice"
OMP_NUM_THREADS=1 "${command[@]}" > "$work/first" 2>&1 &
first=$!
OMP_NUM_THREADS=1 "${command[@]}" > "$work/second" 2>&1 &
second=$!
wait "$first" || { cat "$work/first"; exit 1; }
wait "$second" || { cat "$work/second"; exit 1; }
for name in first second; do
    echo "# the $name process trained trials $(sed -n 's/^trial \([0-9]*\),.*:.*/\1/p' "$work/$name" | tr '\n' ' ')"
done
sed -n '/^tried/,$p' "$work/first"
echo "$ psql -c 'select state, count(*) from trials group by state'"
as "$bin/psql" -h "$work" -p "$port" -d search -c 'select state, count(*) from trials group by state'
