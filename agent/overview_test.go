package agent

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/epoch"
)

func TestCounted(t *testing.T) {
	for n, want := range map[int]string{0: "", 1: "1 error", 2: "2 errors"} {
		if got := counted(n, "error"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestSummary_DescribesTheLiveEpoch(t *testing.T) {
	for want, live := range map[string]epoch.Epoch{
		"epoch 3 serves":            {Number: 3, NextEpochWaitReason: "waiting for epoch 2"},
		"epoch 3 drains on request": {Number: 3, DrainRequested: true},
		"epoch 3 drains until the undrain is done: waiting for epoch 2": {Number: 3,
			DrainRequested:      true,
			NextEpochWaitReason: "waiting for epoch 2"},
	} {
		if got := doing(live); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
