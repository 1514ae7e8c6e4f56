package packaging

import "testing"

// TestAppArmorProfile compiles the profiles with AppArmor's parser. It does not load them, which
// would need a kernel with AppArmor.
func TestAppArmorProfile(t *testing.T) {
	run(t, "apparmor_parser", "--skip-kernel-load", "--skip-cache", "--skip-read-cache",
		"apparmor/outrider", "apparmor/outrider-discoveryd")
}
