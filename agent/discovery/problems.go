package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"outrider.org/outrider/agent/condition"
)

// ConditionMeshProblems is active while the mesh configuration has errors or warnings. Each of them
// is also published as an event of kind mesh-problem.
const ConditionMeshProblems = "mesh-problems"

// maxEvents bounds the number of problems, and of changed objects, that one push reports one by
// one. Beyond it, only their number is reported.
const maxEvents = 20

// Problems returns all current problems, sorted by position.
func (s *Server) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

// reportProblems collects the problems, publishes new ones as events and updates the condition.
// Callers hold mu.
func (s *Server) reportProblems() {
	before := s.reported
	views := maps.Clone(s.views)
	// views that are not current (see namespaces.go) would report the same problems again
	maps.DeleteFunc(views, func(_ string, v *served) bool { return v.left || !s.isCurrent(v) })
	dropOutdated(views)
	var refused []Problem
	for _, v := range views {
		refused = append(refused, s.refusedProblems(v)...)
	}
	s.closed.Store(cmp.Or(s.config.closed, notInForce(refused)))
	s.problems = gather(s.config.stored, slices.Concat(s.reportedMesh(), refused,
		s.sharing.problems(), s.config.refs.problems(), s.groupProblems(), s.proxyProblems(),
		unselected(s.config.world, views)), views)
	if s.reported = s.problems; s.settings.ServesNoEnvoy {
		s.reported = nil
	}
	if s.options.Conditions == nil || slices.Equal(before, s.reported) {
		return
	}
	known := make(map[Problem]bool, len(before))
	for _, p := range before {
		known[p] = true
	}
	fresh := 0
	for _, p := range s.reported {
		if known[p] || p.Severity == condition.Info {
			continue
		}
		if fresh++; fresh <= maxEvents {
			s.options.Conditions.Publish(condition.Event{Kind: condition.KindMeshProblem,
				Sentence: p.String(),
				Fields: map[string]string{"file": p.File, "line": strconv.Itoa(p.Line),
					"object": p.Object, "field": p.Field,
					"severity": string(p.Severity)}})
		}
	}
	if fresh > maxEvents {
		s.options.Conditions.Publish(condition.Event{Kind: condition.KindMeshProblem,
			Sentence: fmt.Sprintf("%d more problems in the mesh configuration; run \"outrider "+
				"mesh check\" for details", fresh-maxEvents),
			Fields: map[string]string{"severity": string(condition.Warning)}})
	}
	s.raise()
}

// raise raises ConditionMeshProblems if there are errors or warnings, else clears it.
func (s *Server) raise() {
	counts := map[condition.Severity]int{}
	first := map[condition.Severity]Problem{}
	for _, p := range s.reported {
		if counts[p.Severity]++; counts[p.Severity] == 1 {
			first[p.Severity] = p
		}
	}
	sentence := func(severity condition.Severity, what string) string {
		text := fmt.Sprintf("the mesh configuration has %d %s", counts[severity], what)
		if counts[severity] > 1 {
			text += "s, the first"
		}
		return text + ": " + first[severity].String()
	}
	switch {
	case counts[condition.Error] > 0:
		s.options.Conditions.Raise(ConditionMeshProblems, condition.Error, sentence(condition.Error,
			"error"))
	case counts[condition.Warning] > 0:
		s.options.Conditions.Raise(ConditionMeshProblems, condition.Warning,
			sentence(condition.Warning,
				"warning"))
	default:
		s.options.Conditions.Clear(ConditionMeshProblems)
	}
}

// gather returns all problems without duplicates, sorted by file and line: those of the store,
// those in ofMesh (MeshConfig, refused resources, references), and those of the views.
func gather(stored, ofMesh []Problem, views map[string]*served) []Problem {
	more := slices.Clone(ofMesh)
	for _, v := range views {
		for _, problems := range v.Problems() {
			more = append(more, problems...)
		}
	}
	if len(more) == 0 {
		return stored // not copied, because there may be thousands of problems
	}
	all := slices.Concat(stored, more)
	slices.SortFunc(all, Problem.Compare)
	return slices.Compact(all)
}

// ResourcesWithheldReason returns why no resources are served although the files were read, or why
// a policy is not in force. It returns "" if resources are served and all policies are in force. It
// never blocks, because readiness depends on it.
func (s *Server) ResourcesWithheldReason() string {
	if why := s.closed.Load(); why != nil {
		return *why
	}
	return ""
}
