package agent

import (
	"io/fs"
	"testing"

	"outrider.org/outrider/agent/config"
)

func TestSocketFault_NamesTheKeyAndTheCure(t *testing.T) {
	loaded := &config.Loaded{Config: &config.Config{}, Positions: map[string]config.Position{
		"xds.socket": {File: "outrider.toml", Line: 3, Column: 1}}}
	const want = "outrider.toml:3:1: xds.socket: file does not exist; make the folder /none, which the " +
		"agent writes and Envoy reads"
	if got := socketFault(loaded, "xds.socket", "/none/x", fs.ErrNotExist); got.Error() != want {
		t.Errorf("%v", got)
	}
}
