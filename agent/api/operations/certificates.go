package operations

import (
	"slices"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/identity"
)

// certificateProblems returns a problem for each certificate that objects of the mesh configuration
// use and for which a condition is raised. It omits certificates whose file is named in one of the
// known problems.
func certificateProblems(
	secrets []identity.SecretInfo, known []discovery.Problem,
) []discovery.Problem {
	var problems []discovery.Problem
	for _, s := range secrets {
		if s.Condition == "" || len(s.Users) == 0 ||
			slices.ContainsFunc(known, func(p discovery.Problem) bool {
				return s.File != "" && strings.Contains(p.String(), s.File)
			}) {
			continue
		}
		p := discovery.Problem{Severity: condition.Error,
			Message: identity.DescribeSecret(s.Name) + ": " + s.ConditionSentence}
		if s.Condition == identity.CodeNotRenewed {
			p.Severity = condition.Warning
		}
		var position string
		position, p.Object, _ = strings.Cut(s.Users[0], " ") // FILE:LINE KIND NS/NAME
		if colon := strings.LastIndexByte(position, ':'); colon >= 0 {
			p.File = position[:colon]
			p.Line, _ = strconv.Atoi(position[colon+1:])
		}
		problems = append(problems, p)
	}
	return problems
}
