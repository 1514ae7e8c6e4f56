package render

import "os"

// mostExpendable is the maximum of oom_score_adj (proc(5)).
const mostExpendable = "1000"

// Sacrifice makes this process the first one that the kernel kills when memory runs out: rendering
// can be repeated. A failure is harmless.
func Sacrifice() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(mostExpendable), 0o600)
}
