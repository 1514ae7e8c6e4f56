package main

import (
	"context"
	"encoding/json"
	"fmt"

	"outrider.org/outrider/agent/api"
)

func (a *app) showBootstrap(ctx context.Context, client *api.Client, _ []string) error {
	part, err := dump(ctx, client, "BootstrapConfigDump")
	if err != nil {
		return err
	}
	var dumped struct {
		Bootstrap json.RawMessage `json:"bootstrap"`
	}
	if err := json.Unmarshal(part, &dumped); err != nil || len(dumped.Bootstrap) == 0 {
		return fmt.Errorf("Envoy's dump contains no bootstrap") //nolint:staticcheck // a name
	}
	return a.printJSON(dumped.Bootstrap)
}
