# shellcheck shell=bash
leg_title="Real vLLM on the CPU: load, preemptions and faults, from the client's counts to Prometheus"
leg_limit=1500

leg_check() {
  # shellcheck source=scripts/lib/vllm.sh
  source scripts/lib/vllm.sh
  vllm_known || leg_skip "$VLLM_REASON"
}

leg_run() {
  local result=0
  scripts/test-vllm || result=$?
  ((result != 77)) || leg_skip "scripts/test-vllm cannot run here (see above)"
  return "$result"
}
