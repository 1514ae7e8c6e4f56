//go:build deps

// Package deps imports modules that only unmerged code uses, so that they stay in go.mod and are
// downloaded.
package deps

import (
	_ "github.com/BurntSushi/toml"
	_ "github.com/cncf/xds/go/xds/type/matcher/v3"
	_ "github.com/cncf/xds/go/xds/type/v3"
	_ "github.com/coreos/go-systemd/v22/daemon"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	_ "github.com/godbus/dbus/v5"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/renameio/v2"
	_ "github.com/lmittmann/tint"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/common/expfmt"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/cobra/doc"
	_ "go.uber.org/goleak"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/net/http2"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/grpc"
	_ "google.golang.org/grpc/health/grpc_health_v1"
	_ "google.golang.org/protobuf/proto"
	_ "istio.io/api/networking/v1alpha3"
	_ "sigs.k8s.io/yaml"
)
