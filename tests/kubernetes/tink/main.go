// Tinkerbell's tink-controller without the two limits that its own command has no flags for: client-go's 5 requests a second, and one
// worker. Everything else is as its cmd/tink-controller has it. The bench of the controller measures both.
//
// The name of this module lies below that of Tinkerbell's, because Go lets no others import what that keeps in "internal".
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/go-logr/zapr"
	"github.com/tinkerbell/tink/internal/deprecated/controller"
	"go.uber.org/zap"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// As many as bedplate-controller has for a kind (CONCURRENT_RECONCILIATIONS in engine/src/work.rs).
const workers = 8

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	metrics := flag.String("metrics-bind-address", ":8080", "The address the metric endpoint binds to.")
	probe := flag.String("health-probe-bind-address", ":8081", "The address the probe endpoint binds to.")
	flag.Parse()
	zlog, err := zap.NewProduction()
	if err != nil {
		return err
	}
	logger := zapr.NewLogger(zlog)
	ctrl.SetLogger(logger)
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	client, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return err
	}
	client.QPS = -1 // none
	manager, err := controller.NewManager(client, ctrl.Options{
		Logger:                 logger,
		Metrics:                server.Options{BindAddress: *metrics},
		HealthProbeBindAddress: *probe,
		Controller:             config.Controller{MaxConcurrentReconciles: workers},
	})
	if err != nil {
		return err
	}
	return manager.Start(context.Background())
}
