package packaging

import "testing"

// TestAppArmorProfile has AppArmor's own parser compile the profiles; loading them needs a kernel
// with AppArmor.
func TestAppArmorProfile(t *testing.T) {
	run(t, "apparmor_parser", "--skip-kernel-load", "--skip-cache", "--skip-read-cache",
		"apparmor/outrider")
}
