package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// comparison describes how files differ from the mesh configuration in effect, according to the
// running agent.
type comparison struct {
	changes  []api.MeshChange
	problems []discovery.Problem // problems of the resulting mesh configuration
	not      error               // reason why nothing was compared; nil: the agent has compared
}

// compare queries the agent for the resources that files and folders would change.
func (a *app) compare(ctx context.Context, paths []string) comparison {
	texts, err := discovery.ReadFileTexts(paths, api.MaxMeshFilesBytes)
	if err != nil {
		return comparison{not: err}
	}
	// arguments maps absolute paths to the spellings in the command line.
	request, arguments := api.MeshFiles{}, map[string]string{}
	for _, text := range texts {
		absolute, err := filepath.Abs(text.Path)
		if err != nil {
			return comparison{not: err}
		}
		arguments[absolute] = text.Path
		request.Files = append(request.Files, api.MeshFile{Path: absolute, Content: text.Content})
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			folder, err := filepath.Abs(path)
			if err != nil {
				return comparison{not: err}
			}
			request.CompleteFolders = append(request.CompleteFolders, folder)
		}
	}
	found, err := a.client().MeshCompare(ctx, request)
	if _, absent := errors.AsType[*api.NotRunningError](err); absent {
		err = errors.New("no agent runs")
	}
	if err != nil {
		return comparison{not: err}
	}
	relative := func(file *string) {
		if path, ok := arguments[*file]; ok {
			*file = path
		}
	}
	c := comparison{changes: found.Changes, problems: problemsOf(found.Problems)}
	for i := range c.changes {
		relative(&c.changes[i].File)
	}
	for i := range c.problems {
		relative(&c.problems[i].File)
	}
	return c
}

// finding is an element of the JSON output of `outrider mesh check`: a problem, or a resource that
// would change.
type finding struct {
	discovery.Problem
	Change string `json:"change,omitempty"` // "added", "changed" or "removed"; "": a problem
	Type   string `json:"type,omitempty"`
	Name   string `json:"name,omitempty"`
}

// findings returns problems and changes as one list.
func findings(problems []discovery.Problem, changes []api.MeshChange) []finding {
	all := []finding{}
	for _, p := range problems {
		all = append(all, finding{Problem: p})
	}
	for _, c := range changes {
		all = append(all, finding{Problem: discovery.Problem{File: c.File, Line: c.Line,
			Object: c.Object, Severity: condition.Info,
			Message: fmt.Sprintf("%s %s would be %s", c.Type, c.Name, c.Change)},
			Change: c.Change, Type: c.Type, Name: c.Name})
	}
	return all
}

// printComparison prints a line for each resource that would change.
func (a *app) printComparison(c comparison) {
	if c.not != nil {
		fmt.Fprintf(a.err, "not compared with what the agent serves: %v\n", c.not)
		return
	}
	if a.json {
		return
	}
	counts, rows := map[string]int{}, &table{head: []string{"CHANGE", "TYPE", "NAME", fromColumn}}
	for _, change := range c.changes {
		counts[change.Change]++
		from := change.Object
		if change.File != "" {
			from = resource.Position(change.File, change.Line) + " " + change.Object
		}
		rows.add(change.Change, change.Type, change.Name, from)
	}
	if len(c.changes) == 0 {
		fmt.Fprintln(a.out, "compared with what the agent serves: no resource would change")
		return
	}
	fmt.Fprintf(a.out, "compared with what the agent serves: %d added, %d changed, %d removed\n",
		counts["added"], counts["changed"], counts["removed"])
	a.write(rows, "")
}
