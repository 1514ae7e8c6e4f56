package agent

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"outrider.org/outrider/agent/access"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/bootstrap"
)

// lastGoodName is the file in the state directory with the last-good versions of invalid objects.
const lastGoodName = "mesh-last-good.json"

// maxViews is the number of nodes with different resources that are served at the same time: those of
// overlapping epochs and of applications.
const maxViews = 8

// discoveryOptions returns the options of the embedded discovery server.
func (a *Agent) discoveryOptions(c *config.Config) discovery.Options {
	options := discovery.Options{
		Files: c.Discovery.Files, OwnAddresses: true, Changes: a.meshWatch.Changes(),
		// The path may have policies that need the identity.
		Await:    c.Identity.Provider != "none" && c.Discovery.Address == "",
		Settings: discoverySettings(c), Here: true, MaxViews: maxViews, Denied: a.deniedToEnvoy,
		DeniedHere: unreadable,
		Namespaces: a.namespaces, TrustBundle: a.trust,
		LastGood: filepath.Join(c.Paths.StateDir, lastGoodName), Board: a.board,
		Logger: a.logOf("discovery"),
	}
	options.TypedConfigs = bootstrap.TypedChecker()
	if _, err := os.Stat(a.maker.cache); err == nil { // the file of an earlier start
		options.Served = true
	}
	options.Settings.EnvoyVersion = a.cachedVersion(c)
	if c.DNS.Listen != "" {
		options.Pushed = a.publishNames
	}
	return options
}

// cachedVersion returns the version of the configuration's Envoy if an earlier start inspected it,
// else "".
func (a *Agent) cachedVersion(c *config.Config) string {
	path, err := envoy.Find(c.Envoy.Binary)
	if err != nil {
		return ""
	}
	known := envoy.Cached(path, a.maker.cache)
	if known == nil {
		return ""
	}
	return known.Version
}

// namespaces returns those of the running epochs. An earlier agent may have started some with
// another namespace than the configuration's.
func (a *Agent) namespaces() []string {
	var all []string
	for _, e := range a.supervisor.Epochs() {
		if e.Exited.IsZero() {
			all = append(all, e.Namespace)
		}
	}
	return all
}

// deniedToEnvoy returns why Envoy cannot read a file, "" if it can or while the keeper is not
// connected; see blueprint.Reader.
func (a *Agent) deniedToEnvoy(path string) string { return a.envoyUser().Denied(path) }

// envoyMayNotHave returns why Envoy must not be given the content of a file, "" if it may. It waits
// for the first connection to the keeper, which knows Envoy's user.
func (a *Agent) envoyMayNotHave(file *os.File) string {
	<-a.keeper.Ready()
	return a.envoyUser().DeniedOpen(file)
}

// unreadable returns why this process cannot read a path, and the fix; see blueprint.Reader.
func unreadable(path string) string { return blueprint.ThisUser().Denied(path) }

// accessTime bounds a question to the keeper about a file.
const accessTime = 5 * time.Second

// envoyUser returns the user of the keeper and Envoy, nil while the keeper is not connected.
func (a *Agent) envoyUser() *blueprint.Reader {
	keeper := a.keeper.Get()
	if keeper == nil {
		return nil
	}
	check := func(path string) (access.Result, error) {
		ctx, cancel := context.WithTimeout(context.Background(), accessTime)
		defer cancel()
		return keeper.Access(ctx, path)
	}
	info := keeper.Info()
	return blueprint.RunningReader(check, info.UID, append([]int{info.GID}, info.Groups...)...)
}
