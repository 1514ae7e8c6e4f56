package envoy

import (
	"context"
	"encoding/json"
	"fmt"
)

// StateDraining is the state that Envoy reports after POST /healthcheck/fail.
const StateDraining = "DRAINING"

// RestartEpoch requests the --restart-epoch of the Envoy behind the interface. The response is
// about 150 KB; to poll the state, use Ready.
func (a *Admin) RestartEpoch(ctx context.Context) (int, error) {
	var answer struct {
		Options struct {
			RestartEpoch int `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	err := a.getJSON(ctx, "/server_info", &answer)
	return answer.Options.RestartEpoch, err
}

func (a *Admin) getJSON(ctx context.Context, path string, answer any) error {
	body, err := a.Get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s of %s: %w", path, a, err)
	}
	return nil
}
