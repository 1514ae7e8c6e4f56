package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// plots maps file names to SVG.
type plots map[string][]byte

func (r *epochsResult) plots() plots {
	return plots{"epochs.svg": plot("A new epoch again and again", []series{{
		title: fmt.Sprintf("outrider reload, %d times: %d of %d requests lost",
			r.Epochs, r.Load.Lost, r.Load.Total),
		report: r.Load,
	}})}
}

func (r *restartResult) plots() plots {
	own, plain := r.Outrider, r.Plain
	return plots{"restart.svg": plot("Latency and failed requests while the configuration changes",
		[]series{{
			title:  fmt.Sprintf("outrider reload: %d of %d requests lost", own.Lost, own.Total),
			report: own,
		}, {
			title: fmt.Sprintf("stop and start of a plain Envoy: %d of %d lost, "+
				"%d more cut off and to be tried again", plain.Lost, plain.Total, plain.Retriable),
			report: plain,
		}})}
}

// writePlots writes the plots of a result to a directory.
func writePlots(folder string, all plots) error {
	for name, svg := range all {
		if err := writeText(folder, name, svg); err != nil {
			return err
		}
	}
	return nil
}

// replot draws the plots of a directory again from its JSON files.
func replot(folder string) error {
	for name, result := range map[string]interface{ plots() plots }{
		"epochs.json": &epochsResult{}, "restart.json": &restartResult{},
	} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		written := struct {
			Result any `json:"result"`
		}{result}
		if err := json.Unmarshal(text, &written); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := writePlots(folder, result.plots()); err != nil {
			return err
		}
		fmt.Println("drawn anew from", strings.TrimSuffix(folder, "/")+"/"+name)
	}
	return nil
}
