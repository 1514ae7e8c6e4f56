package agent

import (
	"path/filepath"
	"testing"

	"outrider.org/outrider/agent/config"
)

func TestIdentitySettings_SealedCertificateIsRemoved(t *testing.T) {
	for _, test := range []struct {
		provider, persist string
		removed           bool
	}{
		{"istiod", "auto", false}, {"istiod", "off", true}, {"files", "auto", true},
		{"spire", "auto", true}, {"none", "auto", true},
	} {
		c := &config.Config{}
		c.Paths.StateDir = "/state"
		c.Identity.Provider, c.Identity.Persist = test.provider, test.persist
		want := ""
		if test.removed {
			want = filepath.Join("/state", sealedName)
		}
		if got := identitySettings(c, nil, nil, nil).StaleStoreFile; got != want {
			t.Errorf("%+v: %q is removed", test, got)
		}
	}
}
