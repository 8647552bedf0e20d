#!/usr/bin/env bash
# A Slurm of one node, for trying `binep sweep --on slurm`, from Debian's packages; run as root.
#
#   apt-get install slurm-wlm munge
#   bash examples/cluster/slurm.sh
#
# Trains a sweep as an array of jobs, puts one of them back into the queue in the middle of its
# training, as a preemption would, and asks again at the end: nothing is left to train.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
started=()
finish() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap finish EXIT

# --- a cluster of one node
mkdir -p "$work/state" "$work/spool"
chmod 711 "$work"
dd if=/dev/urandom of="$work/key" bs=1024 count=1 status=none
chmod 400 "$work/key"
munged --foreground --force --key-file="$work/key" --socket="$work/munge" \
    --pid-file="$work/munge.pid" --log-file="$work/munge.log" --seed-file="$work/seed" > /dev/null 2>&1 &
started+=($!)
cores=$(nproc)
cat > "$work/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge
CryptoType=crypto/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
MinJobAge=300
SchedulerParameters=sched_interval=2
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$cores State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$work/slurm.conf"
sleep 1
slurmctld -D > /dev/null 2>&1 & started+=($!)
slurmd -D > /dev/null 2>&1 & started+=($!)
for _ in $(seq 60); do sinfo -h -o %t 2>/dev/null | grep -q idle && break; sleep 1; done
echo "$ sinfo"
sinfo

# --- a sweep on it
cat > "$work/betas.toml" <<'TOML'
recipe = "digits-1fc-w"
seeds = 2
set = ["training.epochs=40"]

[grid]
learning.beta = [0.3, 0.5]
TOML
command=(python -m binep sweep "$work/betas.toml" --on slurm --out "$work/runs"
    --to "$work/evidence" --slurm timeout_min=30 --device cpu)
echo "$ binep sweep betas.toml --on slurm --slurm timeout_min=30 --device cpu"
"${command[@]}" > "$work/table" 2>&1 &
sweep=$!
metrics="$work/runs/digits-1fc-w-seed0/metrics.jsonl"
for _ in $(seq 120); do [ -s "$metrics" ] && [ "$(wc -l < "$metrics")" -ge 3 ] && break; sleep 0.5; done
job=$(squeue -h -r -o %i -t RUNNING | sort | head -n 1)
echo "$ squeue"
squeue -r -o "%.8i %.9P %.6j %.3t %.6M %R"
echo "$ scontrol requeue $job    # after $(wc -l < "$metrics") epochs"
scontrol requeue "$job"
wait "$sweep" || { cat "$work/table"; exit 1; }
grep -v -e submitit -e accounting "$work/table"
echo "$ grep starts runs/*/record.json"
(cd "$work" && grep -H '"starts"' runs/*/record.json)
echo "$ binep sweep betas.toml --on slurm --show | tail -n 4; find evidence -name 'seed*'"
"${command[@]}" --show | tail -n 4
(cd "$work" && find evidence -name 'seed*' | sort)
