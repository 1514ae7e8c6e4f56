package agent

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/mesh"
)

// lastGoodName is the file in the state directory with the last-good versions of invalid objects.
const lastGoodName = "mesh-last-good.json"

// discoveryOptions returns the options of the embedded discovery server.
func (a *Agent) discoveryOptions(c *config.Config) discovery.Options {
	return discovery.Options{
		Files: c.Discovery.Files, OwnAddresses: true, Changes: a.meshWatch.Changes(),
		Watch: a.meshWatch.SetCertificates, Settings: mesh.Settings(c),
		Denied:   a.deniedToEnvoy,
		LastGood: filepath.Join(c.Paths.StateDir, lastGoodName), Board: a.board,
		Logger: a.logOf("discovery"),
	}
}

// deniedToEnvoy returns why Envoy cannot read a file, "" if it can or while the keeper is not
// connected; see blueprint.Reader.
func (a *Agent) deniedToEnvoy(path string) string {
	keeper := a.keeper.Get()
	if keeper == nil {
		return ""
	}
	info := keeper.Info()
	groups := []string{strconv.Itoa(info.GID)}
	for _, gid := range info.Groups {
		groups = append(groups, strconv.Itoa(gid))
	}
	return blueprint.LookupReader(strconv.Itoa(info.UID), groups...).Denied(path)
}

// discoveryStatus returns the state of the embedded discovery server, with the number of its
// problems.
func (b backend) discoveryStatus(problems []discovery.Problem) api.Discovery {
	var errors, warnings int
	for _, p := range problems {
		switch p.Severity {
		case condition.Error:
			errors++
		case condition.Warning:
			warnings++
		}
	}
	detail := strings.Join(slices.DeleteFunc([]string{counted(errors, "error"),
		counted(warnings, "warning")}, func(s string) bool { return s == "" }), ", ")
	if detail != "" {
		detail += "; run \"outrider mesh check\" for details"
	}
	return api.Discovery{State: "embedded", Since: b.started, Detail: detail}
}

// counted returns a number with its noun, or "" for 0.
func counted(n int, noun string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
