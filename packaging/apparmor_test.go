package packaging

import "testing"

// TestAppArmorProfile compiles the profiles with AppArmor's parser. Loading them needs a kernel
// with AppArmor.
func TestAppArmorProfile(t *testing.T) {
	run(t, "apparmor_parser", "--skip-kernel-load", "--skip-cache", "--skip-read-cache",
		"apparmor/outrider", "apparmor/outrider-discoveryd")
}
