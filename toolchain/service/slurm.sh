#!/bin/sh
# slurm.sh - a run of several nodes under Slurm, one worker on each.
#
#   sbatch --nodes=4 toolchain/service/slurm.sh CONFIG RUN_DIR [OPTION of train ...]
#
# 120 s before its time is over the run is asked to save and to end, and the job goes back into the
# queue, where it goes on: --resume-or-start. MASTER_PORT may name another port than 12345.
#
# Between hosts two things are needed (comm/README.md): LOCKSTEP_KEY_FILE names a key that all nodes
# can read, and LOCKSTEP_NETWORK the network that is yours alone, such as 10.1.0.0/16; or it is
# "insecure", where everybody may read and disturb what the workers exchange.
#SBATCH --job-name=lockstep
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=lockstep-%j.log
set -eu

[ $# -ge 2 ] || { echo "usage: sbatch slurm.sh CONFIG RUN_DIR [OPTION ...]" >&2; exit 64; }
config=$1 run_dir=$2
shift 2
case ${LOCKSTEP_NETWORK:-} in
'') [ "${SLURM_NTASKS:-1}" -eq 1 ] || {
        echo "slurm.sh: set LOCKSTEP_NETWORK, such as to 10.1.0.0/16 (see its first lines)" >&2
        exit 78
    } ;;
insecure) set -- --insecure "$@" ;;
*) set -- --private-network "$LOCKSTEP_NETWORK" "$@" ;;
esac

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=${MASTER_PORT:-12345}
export MASTER_ADDR MASTER_PORT

# The rank of each is Slurm's, said as torchrun says it; which is also where rank 0 is found.
status=0
# shellcheck disable=SC2016
srun --kill-on-bad-exit=0 sh -c '
    RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec lockstep train "$@"' \
    sh "$config" --run-dir "$run_dir" --resume-or-start --start-timeout 600 "$@" || status=$?

# 143: asked to end, and saved. 75: another worker was lost.
case $status in
143 | 75) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$status"
