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
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/bootstrap"
)

// lastGoodName is the file in the state directory with the last-good versions of invalid objects.
const lastGoodName = "mesh-last-good.json"

// maxViews is the maximum number of views (resources of one kind of proxy) at the same time. Each
// overlapping epoch and each gRPC application may need a view of its own.
const maxViews = 8

// refusalsName is the file in the state directory with the resources that Envoys refused.
const refusalsName = "mesh-refusals"

// keySetsName is the file in the state directory with the JSON Web Key Sets of token issuers.
const keySetsName = "mesh-key-sets"

// modulesName is the file in the state directory with the Wasm modules of extensions.
const modulesName = "mesh-wasm-modules"

// newDiscovery returns the embedded discovery server. The server calls pushed after each change of
// its resources.
func newDiscovery(b *base, c *config.Config, changes <-chan []string, e *epochParts,
	w *workloadIdentity, pushed func(),
) (*discovery.Server, error) {
	cache := filepath.Join(c.Paths.StateDir, binaryCacheName)
	options := discovery.Options{
		Files: c.Discovery.Files, SeparateViewsByAddress: true, ChangedPaths: changes,
		AwaitFileListing: len(c.Discovery.Addresses) == 0,
		Settings:         discoverySettings(c), FilesAreLocal: true, MaxViews: maxViews,
		ProxyReadCheck:  func(path string) string { return envoyReader(e.link).ReadDenialReason(path) },
		AgentReadCheck:  unreadable,
		ProxyNamespaces: func() []string { return namespaces(e.supervisor) }, OnTrustChange: w.trust,
		LastGoodFile:    filepath.Join(c.Paths.StateDir, lastGoodName),
		RefusalFile:     filepath.Join(c.Paths.StateDir, refusalsName),
		KeySetCacheFile: filepath.Join(c.Paths.StateDir, keySetsName), Conditions: b.board,
		WasmModuleCacheFile: filepath.Join(c.Paths.StateDir, modulesName), FetchWasmModules: true,
		Logger: b.logOf("discovery"), OnPush: pushed,
	}
	options.TypedConfigs = bootstrap.NewTypedConfigChecker()
	if _, err := os.Stat(cache); err == nil { // an earlier start of the agent has written the file
		options.EarlierRunMayHaveServedFiles = true
	}
	options.Settings.EnvoyVersion = cachedVersion(c, cache)
	return discovery.New(options)
}

// cachedVersion returns the version of the configured Envoy binary if an earlier start of the agent
// has inspected that binary, else "".
func cachedVersion(c *config.Config, cache string) string {
	path, err := envoy.Find(c.Envoy.Binary)
	if err != nil {
		return ""
	}
	known := envoy.ReadCachedBinary(path, cache)
	if known == nil {
		return ""
	}
	return known.Version
}

// namespaces returns the namespaces of the running epochs. An epoch that an earlier agent started
// may have another namespace than the configured one.
func namespaces(supervisor *epoch.Supervisor) []string {
	var all []string
	for _, e := range supervisor.Epochs() {
		if e.Exited.IsZero() {
			all = append(all, e.MeshNamespace)
		}
	}
	return all
}

// envoyMayNotHave returns why Envoy must not receive the content of a file, "" if it may. It waits
// for the first connection to the keeper, which knows Envoy's user.
func envoyMayNotHave(link *epoch.KeeperLink, file *os.File) string {
	<-link.Ready()
	return envoyReader(link).ReadDenialReasonOfOpenedFile(file)
}

// unreadable returns why this process cannot read a path, and the fix; see blueprint.UserAccess.
func unreadable(path string) string { return blueprint.OwnUserAccess().ReadDenialReason(path) }

// accessTime bounds a request that asks the keeper whether Envoy's user can read a file.
const accessTime = 5 * time.Second

// envoyReader returns the user of the keeper and Envoy, nil while the keeper is not connected.
func envoyReader(link *epoch.KeeperLink) *blueprint.UserAccess {
	keeper := link.Connection()
	if keeper == nil {
		return nil
	}
	check := func(path string) (access.Result, error) {
		ctx, cancel := context.WithTimeout(context.Background(), accessTime)
		defer cancel()
		return keeper.CheckAccess(ctx, path)
	}
	info := keeper.Info()
	return blueprint.UserAccessOfProcess(check, info.UID, append([]int{info.GID},
		info.Groups...)...)
}
