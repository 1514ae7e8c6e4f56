package render

import "os"

// maxOOMScoreAdj is the maximum of oom_score_adj (proc(5)).
const maxOOMScoreAdj = "1000"

// PreferOOMKill makes this process the first one that the kernel kills when memory runs out:
// rendering can be repeated. A failure is harmless.
func PreferOOMKill() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(maxOOMScoreAdj), 0o600)
}
