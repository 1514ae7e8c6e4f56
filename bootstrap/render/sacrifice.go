package render

import "os"

// mostExpendable is the largest oom_score_adj (proc(5)).
const mostExpendable = "1000"

// Sacrifice has the kernel end this process before any other where memory runs out: its answer can be asked for again, and who asks, and
// the Envoys beside it, are worth more. Where the kernel does not let it, there is nothing lost but that.
func Sacrifice() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(mostExpendable), 0o600)
}
